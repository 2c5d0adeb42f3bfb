"""Stand-ins for models and tokenizers that tests can compute by hand."""

from promptcache.testing.byte_tokenizer import ByteTokenizer

__all__ = ["ByteTokenizer"]
