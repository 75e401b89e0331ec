"""Options, defaults and values: text in, one frozen configuration out."""
