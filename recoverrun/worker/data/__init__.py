"""Loaders, iterators and generators that can answer as another rank."""
