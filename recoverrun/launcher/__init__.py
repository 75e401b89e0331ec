"""The agent of a node: what runs beside the workers. It never imports torch."""
