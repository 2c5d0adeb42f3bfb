"""The formatter: its layout of elements and text blocks, and the markup that it keeps."""
