"""Syntax of documents: sources, XML, schema nodes, conditions, includes and templates."""
