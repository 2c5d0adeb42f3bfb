"""The rules of a schema: compiled to clauses, solved, counted and explained."""
