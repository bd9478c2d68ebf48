"""A report for programs: JSON, and the same as YAML.

The shape is view.report's structs, field for field; it is the one of `simulate -o json` and of
`inspect -o json`.
"""

import msgspec


def encode(report: msgspec.Struct) -> bytes:
    """Indented JSON with a newline at the end."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def encode_yaml(report: msgspec.Struct) -> bytes:
    """The same as YAML. Needs PyYAML, which is imported here and only here."""
    import msgspec.yaml

    return msgspec.yaml.encode(report)
