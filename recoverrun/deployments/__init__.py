"""Job files for schedulers, rendered from templates: each undoes what would kill survivors."""
