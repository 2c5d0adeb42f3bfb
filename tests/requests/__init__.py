"""Random requests with every option of `generate`, in every way of asking, and the law that they are the reference."""
