"""The sentences of the sample shop. Data only; `catalogue` fills the placeholders.

{type}, {style}, {room}, {material} and {need} take a word for the item's value, {colour}, {maker} and {model} are noise,
and {other} is a shopper's word for a type that the item is not: what sellers write besides, and what misleads word matching.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainers.demo.words import Attribute, Language

TITLES: Mapping[Language, tuple[str, ...]] = {
    "en": (
        "{maker} {model} {style} {material} {type}, {colour}",
        "{model} {style} {type}, {material}, {colour}",
        "{material} {type} {model} by {maker}, {style}, {colour}",
        "{maker} {need} {material} {type} {model}, {colour}",
        "{model} {room} {type}, {style}, {colour} - {maker}",
        "{maker} {model}: {need} {style} {type}, {colour}",
    ),
    "de": (
        "{maker} {type} {model}, {style}, {material}, {colour}",
        "{type} {material} {model}, {style}, {colour}",
        "{type} {style} {model} von {maker}, {colour}",
    ),
    "zh": (
        "{maker} {model} {style} {material} {type} {colour}",
        "{style} {type} {model} {material} {colour}",
        "{material} {type} {model} {style} {colour}",
    ),
}

# One group an attribute: an item says in its description every attribute that its title leaves out, and some of the rest.
SENTENCES: Mapping[Language, Mapping[str, tuple[str, ...]]] = {
    "en": {
        "style": (
            "A {style} {type} with calm, confident lines.",
            "{maker} has built this {style} {type} since its first season.",
            "Think {style} {type}, finished in {colour}.",
            "Everything you want from a {style} {type}.",
            "The {colour} finish suits a {style} {room} scheme.",
            "We drew it for a {style} {room} corner.",
        ),
        "material": (
            "This {material} {type} is assembled by hand.",
            "A solid {material} {type} that ages with grace.",
            "Every {material} {type} leaves the bench with its maker's mark.",
            "No {material} {type} looks quite like the next.",
            "Trimmed in {material} and checked twice.",
        ),
        "room": (
            "A {room} {type} that feels at home from day one.",
            "Made to measure up as a {room} {type}.",
            "The {room} {type} that customers ask for by name.",
            "Picture it in a {style} {room} setting.",
            "It brightens up any {room} corner.",
        ),
        "need": (
            "A {need} {type}, delivered in two boxes.",
            "The {need} {type} of the season.",
            "Reviewers call it a truly {need} {type}.",
            "If you look for a {need} {type}, stop here.",
            "From our {need} collection.",
        ),
        "more": (
            "Goes nicely with a {other} of the same line.",
            "Looks even better next to a {other}.",
            "Also ask for the matching {other}.",
            "Ships within a week.",
            "Comes with a ten-year guarantee.",
            "Wipe with a soft, dry cloth.",
        ),
    },
    "de": {
        "style": (
            "{type} {style} mit ruhigen Linien.",
            "Stil: {style}, Oberfläche in {colour}.",
            "Fügt sich überall ein: {type} {style} von {maker}.",
        ),
        "material": (
            "{type} {material}, von Hand gefertigt.",
            "Material: {material}, sorgfältig verarbeitet.",
        ),
        "room": (
            "{type} {room}, vom ersten Tag an wie zu Hause.",
            "Gedacht für {room} und Gäste.",
        ),
        "need": (
            "{type} {need}, Lieferung in zwei Paketen.",
            "Eigenschaft: {need}.",
        ),
        "more": (
            "Dazu passt: {other}.",
            "Lieferzeit eine Woche.",
            "Zehn Jahre Garantie.",
        ),
    },
    "zh": {
        "style": ("{style} {type}，线条简洁。", "风格：{style}，颜色：{colour}。"),
        "material": ("{material} {type}，手工制作。", "材质：{material}，做工精细。"),
        "room": ("{room} {type}，摆放方便。", "适合 {room}。"),
        "need": ("{need} {type}，分两箱送达。", "特点：{need}。"),
        "more": ("可搭配 {other}。", "一周内发货。", "质保十年。"),
    },
}

# Queries by family: the first attribute is {a}, the second {b}; shoppers' words.
QUERIES: Mapping[Language, Mapping[tuple[Attribute, Attribute], tuple[str, ...]]] = {
    "en": {
        ("style", "type"): ("{a} {b}", "{a} {b}", "{a} style {b}", "{b} {a}"),
        ("room", "type"): ("{b} for {a}", "{a} {b}", "{b} {a}"),
        ("material", "type"): ("{a} {b}", "{a} {b}", "{b} {a}"),
        ("need", "type"): ("{a} {b}", "{a} {b}", "{b} {a}"),
        ("style", "room"): ("{a} {b}", "{a} {b} furniture", "furniture for {a} {b}"),
    },
    "de": {
        ("style", "type"): ("{b} {a}",),
        ("room", "type"): ("{b} {a}",),
        ("material", "type"): ("{b} {a}",),
        ("need", "type"): ("{b} {a}",),
    },
    "zh": {
        ("style", "type"): ("{a} {b}",),
        ("room", "type"): ("{a} {b}",),
        ("material", "type"): ("{a} {b}",),
        ("need", "type"): ("{a} {b}",),
    },
}
