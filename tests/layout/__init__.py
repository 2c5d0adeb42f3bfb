"""Tests of the layout room."""
