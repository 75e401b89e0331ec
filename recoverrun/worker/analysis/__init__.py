"""The meaning of the script's sources, without running them. Pure `ast`."""
