"""Make a schema from a folder of documents; each file becomes a module."""

from __future__ import annotations

from pathlib import Path

from promptcache.language import CheckedSchema, Prompt, Schema, check_schema, print_schema, resolve_prompt, text_of

FOLDER = Path(__file__).parent / "library"


def build() -> CheckedSchema:
    """Render the template with the notes of the folder, and check the schema that it makes."""
    files = sorted((FOLDER / "notes").glob("*.txt"))
    notes = [{"name": file.stem, "text": file.read_text(encoding="utf-8").strip()} for file in files]
    return check_schema(Schema.from_file(FOLDER / "library.xml.j2", context={"notes": notes}))


def main() -> None:
    """Print the schema, and what a prompt that names one note selects."""
    schema = build()
    print(print_schema(schema.source))
    prompt = Prompt("library").use("ferries").text("When does the next one leave?")
    print(text_of(resolve_prompt(prompt, schema)))


if __name__ == "__main__":
    main()
