"""The vocabulary and the sentences of the sample shop. Data only; `_shop` makes the
catalogue from it.

Every attribute has values, and every value has words in three languages. Sellers and shoppers
mostly use different ones, which is the gap that learned keywords have to close.

The sentences have placeholders, which `_shop` fills: {type}, {style}, {room}, {material} and {need}
take a word for the item's value, {colour}, {maker} and {model} are noise, and {other} is a
shopper's word for a type that the item is not: what sellers write besides, and what misleads word
matching.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Language = Literal["en", "de", "zh"]
Attribute = Literal["type", "style", "room", "material", "need"]
ATTRIBUTES: tuple[Attribute, ...] = get_args(Attribute)


@dataclass(frozen=True, slots=True)
class Words:
    """Words for one value in one language: the sellers', the commonest first, and the shoppers',
    all equally common.
    """

    sellers: tuple[str, ...]
    shoppers: tuple[str, ...]


def _words(text: str) -> Words:
    """Sellers' words, a bar, shoppers' words: `settee divan | couch sofa`."""
    sellers, shoppers = text.split("|")
    return Words(tuple(sellers.split()), tuple(shoppers.split()))


def _value(en: str, de: str, zh: str) -> Mapping[Language, Words]:
    return {"en": _words(en), "de": _words(de), "zh": _words(zh)}


VALUES: Mapping[Attribute, Mapping[str, Mapping[Language, Words]]] = {
    "type": {
        "sofa": _value("settee divan | couch sofa", "Dreisitzer | Sofa", "长沙发 | 沙发"),
        "chair": _value(
            "fauteuil wingback | armchair chair", "Ohrensessel | Sessel", "扶手椅 | 椅子"
        ),
        "wardrobe": _value(
            "armoire wardrobe | closet cupboard", "Kleiderschrank | Schrank", "立柜 | 衣柜"
        ),
        "shelf": _value("bookcase etagere | shelf bookshelf", "Bücherwand | Regal", "书架 | 书柜"),
        "lamp": _value("luminaire sconce | lamp light", "Leuchte | Lampe", "灯具 | 台灯"),
        "desk": _value(
            "bureau secretaire | desk workstation", "Sekretär | Schreibtisch", "写字台 | 书桌"
        ),
        "sideboard": _value(
            "credenza buffet | sideboard cabinet", "Anrichte | Kommode", "餐边柜 | 柜子"
        ),
        "stool": _value(
            "ottoman pouffe | stool footstool", "Polsterhocker | Hocker", "脚凳 | 凳子"
        ),
    },
    "style": {
        "scandinavian": _value(
            "Nordic Danish | scandi scandinavian", "nordisch | skandinavisch", "北欧 | 简约"
        ),
        "vintage": _value(
            "midcentury retro | vintage sixties", "retro | altmodisch", "复古 | 怀旧"
        ),
        "rustic": _value(
            "farmhouse country | rustic cottage", "Landhaus | rustikal", "田园 | 乡村"
        ),
        "boho": _value("bohemian eclectic | boho hippie", "Ethno | Boho", "波西米亚 | 民族风"),
        "industrial": _value(
            "loft factory | industrial urban", "Loft | Industrie", "仓库风 | 工业风"
        ),
    },
    "room": {
        "lounge": _value("parlour salon | lounge den", "Salon | Wohnzimmer", "起居室 | 客厅"),
        "bedroom": _value(
            "chamber boudoir | bedroom guestroom", "Schlafgemach | Schlafzimmer", "睡房 | 卧室"
        ),
        "office": _value(
            "study workroom | office workspace", "Arbeitszimmer | Büro", "书房 | 办公室"
        ),
        "hallway": _value("foyer vestibule | hallway entrance", "Diele | Flur", "门厅 | 玄关"),
        "nursery": _value(
            "nursery playroom | kids children", "Spielzimmer | Kinderzimmer", "儿童房 | 宝宝"
        ),
        "dining": _value(
            "refectory dinette | dining kitchen", "Speisezimmer | Esszimmer", "饭厅 | 餐厅"
        ),
    },
    "material": {
        "wood": _value("oak walnut | wooden timber", "Eiche | Holz", "橡木 | 实木"),
        "metal": _value("steel iron | metal", "Stahl | Metall", "钢制 | 金属"),
        "wicker": _value("rattan cane | wicker woven", "Rattan | geflochten", "藤编 | 编织"),
        "leather": _value("cowhide nappa | leather", "Rindsleder | Leder", "牛皮 | 真皮"),
        "reclaimed": _value(
            "reclaimed upcycled | eco recycled", "Altmaterial | nachhaltig", "再生 | 环保"
        ),
    },
    "need": {
        "cheap": _value("thrifty economy | cheap budget", "Aktionspreis | günstig", "特惠 | 便宜"),
        "small": _value("compact slimline | small tiny", "platzsparend | klein", "紧凑 | 小户型"),
        "sturdy": _value(
            "robust hardwearing | sturdy durable", "strapazierfähig | stabil", "耐用 | 结实"
        ),
        "foldable": _value(
            "collapsible convertible | foldable portable",
            "zusammenlegbar | klappbar",
            "可收纳 | 折叠",
        ),
        "luxury": _value("opulent deluxe | luxury fancy", "exklusiv | edel", "尊享 | 高档"),
    },
}

UNLIKELY: frozenset[tuple[str, str]] = frozenset({("wardrobe", "leather"), ("shelf", "leather")})
"""Pairs of type and material that no maker offers."""

COLOURS: Mapping[Language, tuple[str, ...]] = {
    "en": ("sage", "charcoal", "ochre", "teal", "ivory", "russet", "navy", "blush"),
    "de": ("salbei", "anthrazit", "ocker", "petrol", "elfenbein", "rostrot", "marine", "rosé"),
    "zh": ("灰绿", "炭灰", "姜黄", "孔雀蓝", "米白", "砖红", "藏青", "藕粉"),
}

MAKERS: tuple[str, ...] = (
    "Halvern", "Corvana", "Lindmoor", "Tessaro", "Quillan", "Penharrow", "Veldhaus",
    "Ostrava & Finch", "Brindlewood", "Maru",
)  # fmt: skip

MODELS: tuple[str, ...] = (
    "Alva", "Bruno", "Cleo", "Dorrit", "Elmo", "Fenja", "Gustav", "Hedda", "Ivo", "Juno",
    "Kasper", "Liv", "Milo", "Nell", "Otto", "Petra", "Quinn", "Rosa", "Sven", "Thea",
)  # fmt: skip


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

# One group an attribute: an item says in its description every attribute that its title leaves out,
# and some of the rest.
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
