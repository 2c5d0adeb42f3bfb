"""The table of diagnostic codes, each with a short title and a severity.

A code is never reused. docs/errors.md has an entry for each code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from promptcache.diagnostics.records import Severity


@dataclass(frozen=True, slots=True)
class Code:
    """A diagnostic code with its title and severity."""

    code: str
    title: str
    severity: Severity = Severity.ERROR


CODES: Mapping[str, Code] = MappingProxyType(
    {
        entry.code: entry
        for entry in (
            # 0xx: XML and security
            Code("PC001", "not well-formed XML"),
            Code("PC002", "DOCTYPE is not allowed"),
            Code("PC003", "unknown entity"),
            Code("PC004", "document too large"),
            Code("PC005", "elements nested too deeply"),
            Code("PC006", "not UTF-8"),
            Code("PC007", "processing instruction is not allowed"),
            Code("PC008", "namespaces are not allowed"),
            Code("PC009", "too many elements, attributes or examples"),
            Code("PC010", "file cannot be read"),
            Code("PC011", "text that XML cannot hold"),
            Code("PC012", "too many faults"),
            # 1xx: structure
            Code("PC101", "unknown element"),
            Code("PC102", "element not allowed here"),
            Code("PC103", "unknown attribute"),
            Code("PC104", "missing attribute"),
            Code("PC105", "attribute value not allowed"),
            Code("PC106", "text not allowed here"),
            Code("PC107", "wrong kind of document"),
            Code("PC108", "union without members"),
            Code("PC109", "module with both src and content"),
            Code("PC110", "turn inside a turn"),
            Code("PC111", "member of a collection with more than text"),
            Code("PC112", "module without content", Severity.WARNING),
            Code("PC113", "second answer"),
            # 2xx: names, paths, files
            Code("PC201", "not a name"),
            Code("PC202", "reserved name"),
            Code("PC203", "module defined twice"),
            Code("PC204", "parameter defined twice"),
            Code("PC205", "union defined twice"),
            Code("PC206", "scaffold defined twice"),
            Code("PC207", "not a path"),
            Code("PC208", "path leads to no module"),
            Code("PC209", "default is no member of its union"),
            Code("PC210", "file outside the folder"),
            Code("PC211", "file that is named cannot be read"),
            Code("PC212", "src file is not UTF-8"),
            Code("PC213", "src file too large"),
            Code("PC214", "file named without a folder"),
            Code("PC215", "pattern cannot be read"),
            Code("PC216", "default or placeholder that the parameter does not take"),
            Code("PC217", "files include each other"),
            Code("PC219", "included file with text outside modules"),
            Code("PC221", "too much is included"),
            Code("PC222", "default beside required", Severity.WARNING),
            Code("PC223", "choices that are hardly meant", Severity.WARNING),
            Code("PC224", "line of a file of members that is no member"),
            Code("PC225", "file of members without members", Severity.WARNING),
            Code("PC226", "rule over a member that the schema does not have", Severity.WARNING),
            Code("PC227", "format of answers that cannot be used"),
            # 3xx: rules of the schema
            Code("PC301", "no prompt can satisfy the schema"),
            Code("PC302", "module can never be used", Severity.WARNING),
            Code("PC303", "default can never be used"),
            Code("PC304", "after names a module that is not laid out earlier"),
            Code("PC305", "scaffold members cannot be present together"),
            Code("PC306", "scaffold member is not cached"),
            Code("PC307", "condition cannot be read"),
            Code("PC308", "rule too large"),
            Code("PC309", "choice that can never be made"),
            Code("PC310", "example is not valid"),
            Code("PC311", "example is valid although it should not be"),
            Code("PC312", "example without its text"),
            Code("PC313", "scaffold that adds nothing", Severity.WARNING),
            Code("PC314", "rules that are too hard to check"),
            Code("PC315", "rule without an effect", Severity.WARNING),
            Code("PC316", "example with an answer of another format"),
            # 4xx: prompts
            Code("PC401", "unknown module"),
            Code("PC402", "unknown parameter"),
            Code("PC403", "argument given twice"),
            Code("PC404", "required argument missing"),
            Code("PC405", "module named twice"),
            Code("PC406", "required module missing"),
            Code("PC407", "union choice missing"),
            Code("PC408", "two members of a union"),
            Code("PC409", "required by a named module, but missing"),
            Code("PC410", "modules that exclude each other"),
            Code("PC411", "union default breaks a rule"),
            Code("PC412", "text between references"),
            Code("PC413", "prompt for another schema"),
            Code("PC414", "must follow a module that is missing"),
            Code("PC415", "reference after the prompt's own text or turns"),
            Code("PC416", "bare text beside turns"),
            Code("PC417", "modules that cannot be used together"),
            Code("PC418", "rule of the schema broken"),
            Code("PC419", "wrong number of modules chosen"),
            Code("PC420", "argument that its parameter does not take"),
            Code("PC421", "other version of the schema"),
            Code("PC422", "schema not found"),
            Code("PC423", "wrong number of members of a collection"),
            # 5xx: tokens and positions (found by layout, which knows the tokenizer)
            Code("PC501", "argument longer than its slot"),
            Code("PC502", "placeholder or default longer than its slot"),
            Code("PC503", "schema needs more positions than the model has"),
            Code("PC504", "prompt needs more positions than the model has"),
            Code("PC505", "text longer than its module's reserve", Severity.WARNING),
            Code("PC506", "empty prompt"),
            Code("PC508", "text that the tokenizer does not give back"),
            Code("PC509", "joined text would tokenize otherwise", Severity.WARNING),
            Code("PC510", "role that the chat template does not have"),
            Code("PC511", "placeholder cut to its slot", Severity.WARNING),
            Code("PC512", "conversation that the chat template refuses"),
            Code("PC513", "conversation whose texts the chat template moves", Severity.WARNING),
            Code("PC514", "text that the chat template writes otherwise", Severity.WARNING),
            Code("PC515", "collection with fixed positions"),
            Code("PC516", "choice longer than its slot", Severity.WARNING),
            Code("PC517", "prompt that asks nothing", Severity.WARNING),
            Code("PC518", "text outside of chat turns", Severity.WARNING),
            # 6xx: templates
            Code("PC601", "template cannot be read"),
            Code("PC602", "not available in templates"),
            Code("PC603", "name without a value"),
            Code("PC604", "template does too much"),
            Code("PC605", "context is not plain data"),
            Code("PC606", "template fails"),
            # 9xx: style
            Code("PC901", "indentation that stays in the text", Severity.WARNING),
            Code("PC902", "template tag that stays in the text", Severity.WARNING),
        )
    }
)
