"""Rules of a schema: compile them to clauses, solve, count and explain them."""
