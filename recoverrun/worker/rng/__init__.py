"""Random streams as values; generators that the script keeps; private draws."""
