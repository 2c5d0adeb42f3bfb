"""Faults planted into the library, and the laws that detect them."""
