"""What happens around the backwards of the script."""
