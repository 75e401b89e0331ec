"""What the script's sources say, without running them. Pure `ast`."""
