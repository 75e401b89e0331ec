"""A region of the script executed as another rank, and what is known of lost ranks."""
