"""Writes the types of the clients from the OpenAPI document of the decision API:

    python3 clients/generate.py          # writes them
    python3 clients/generate.py --check  # fails if they are not current

Both languages get the names and the descriptions of the document. It knows the words of OpenAPI that this document
uses, and stops at any other.
"""

import json
import pathlib
import sys
import textwrap

HERE = pathlib.Path(__file__).parent
NOTE = "Generated from httplimit/openapi.json by clients/generate.py. Do not edit."
SCHEMAS = json.loads((HERE / "../httplimit/openapi.json").read_text())["components"]["schemas"]
# What Python passes as lists.
LISTS = {"Batch", "Verdicts", "ReserveBatch", "Reservations", "CommitBatch", "Receipts", "CancelBatch", "ExtendBatch", "Extensions", "Usage", "Take"}


def members(name):
    """Returns the inline objects of a schema, which need a name in Python, and then the schema itself."""
    for prop, schema in SCHEMAS[name]["properties"].items():
        if "properties" in schema.get("items", {}):
            yield name + prop.capitalize().rstrip("s"), schema["items"]
    yield name, SCHEMAS[name]


def kinds(schema):
    kind = schema.get("type", [])
    return kind if isinstance(kind, list) else [kind]


def python_type(schema, name):
    """Returns a schema as an annotation. An inline object has the name."""
    if "$ref" in schema:
        return schema["$ref"].rsplit("/", 1)[1]
    if "enum" in schema:
        return "Literal[" + ", ".join(json.dumps(v) for v in schema["enum"]) + "]"
    if "oneOf" in schema:
        return "Union[" + ", ".join(python_type(s, name) for s in schema["oneOf"]) + "]"
    if kinds(schema) == ["array"]:
        return f"Sequence[{name if 'properties' in schema['items'] else python_type(schema['items'], name)}]"
    if kinds(schema) == ["object"]:
        return f"Mapping[str, {python_type(schema['additionalProperties'], name)}]"
    basic = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}
    found = [basic[k] for k in kinds(schema) if k != "null"]
    return f"Optional[{found[0]}]" if "null" in kinds(schema) else found[0]


def comment(text, indent, mark):
    return "".join(f"{indent}{mark} {line}\n" for line in textwrap.wrap(text, 110)) if text else ""


def python():
    out = [f'"""The objects of the decision API. {NOTE}"""\n\n', "from __future__ import annotations\n\n", "from dataclasses import dataclass, field\n",
           "from typing import Literal, Mapping, Optional, Sequence, Union\n"]
    for top in SCHEMAS:
        if top in LISTS:
            continue
        for name, schema in members(top):
            says = schema.get("description", f"{name} in the OpenAPI document.")
            out.append(f'\n\n@dataclass(frozen=True)\nclass {name}:\n    """{says}"""\n\n')
            required = schema.get("required", [])
            for prop in sorted(schema["properties"], key=lambda p: p not in required):  # those without a default come first
                s = schema["properties"][prop]
                kind = python_type(s, name + prop.capitalize().rstrip("s"))
                if prop not in required:
                    kind = kind if kind.startswith("Optional[") else f"Optional[{kind}]"
                    kind += f' = field(default=None, metadata={{"json": "{prop}"}})' if "-" in prop else " = None"
                out.append(comment(s.get("description"), "    ", "#:") + f"    {prop.replace('-', '_')}: {kind}\n")
    return "".join(out)


def js_type(schema, indent):
    if "$ref" in schema:
        return schema["$ref"].rsplit("/", 1)[1]
    if "enum" in schema:
        return " | ".join(json.dumps(v).replace('"', "'") for v in schema["enum"])
    if "oneOf" in schema:
        return " | ".join(js_type(s, indent) for s in schema["oneOf"])
    if kinds(schema) == ["array"]:
        item = js_type(schema["items"], indent)
        return f"({item})[]" if "|" in item else f"{item}[]"
    if kinds(schema) == ["object"] and "properties" in schema:
        return js_members(schema, indent)
    if kinds(schema) == ["object"]:
        return f"Record<string, {js_type(schema['additionalProperties'], indent)}>"
    basic = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
    return " | ".join(basic[k] for k in kinds(schema))


def js_members(schema, indent):
    inside, out = indent + "  ", ["{\n"]
    for prop, s in schema["properties"].items():
        if "description" in s:
            out.append(f"{inside}/** {s['description']} */\n")
        name = f"'{prop}'" if "-" in prop else prop
        out.append(f"{inside}{name}{'' if prop in schema.get('required', []) else '?'}: {js_type(s, inside)}\n")
    return "".join(out) + indent + "}"


def js():
    out = [f"// {NOTE}\n"]
    for name, schema in SCHEMAS.items():
        out.append(f"\n/** {schema['description']} */\n" if "description" in schema else "\n")
        out.append(f"export type {name} = {js_type(schema, '')}\n")
    return "".join(out)


def main():
    stale = []
    for path, text in {HERE / "python/src/stint/types.py": python(), HERE / "js/types.d.ts": js()}.items():
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(str(path.relative_to(HERE.parent)))
    if stale:
        sys.exit(f"stale: {', '.join(stale)}: run python3 clients/generate.py")


if __name__ == "__main__":
    main()
