"""The syntax of documents: sources, XML, the nodes of a schema, conditions, includes and templates."""
