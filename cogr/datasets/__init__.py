"""Loaders of data sets. Filled by one module a format."""
