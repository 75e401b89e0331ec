"""Inside the training process: the script that nobody changed, and what recovers its steps."""
