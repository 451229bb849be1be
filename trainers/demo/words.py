"""The vocabulary of the sample shop: what sellers write, what shoppers type. Data only; `catalogue` puts it together.

Every attribute has values, and every value has words in three languages. Sellers and shoppers mostly use different ones,
which is the gap that learned keywords have to close.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Language = Literal["en", "de", "zh"]
Attribute = Literal["type", "style", "room", "material", "need"]
LANGUAGES: tuple[Language, ...] = get_args(Language)
ATTRIBUTES: tuple[Attribute, ...] = get_args(Attribute)


@dataclass(frozen=True, slots=True)
class Words:
    """Words for one value in one language: the sellers', the commonest first, and the shoppers', all equally common."""

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
        "chair": _value("fauteuil wingback | armchair chair", "Ohrensessel | Sessel", "扶手椅 | 椅子"),
        "wardrobe": _value("armoire wardrobe | closet cupboard", "Kleiderschrank | Schrank", "立柜 | 衣柜"),
        "shelf": _value("bookcase etagere | shelf bookshelf", "Bücherwand | Regal", "书架 | 书柜"),
        "lamp": _value("luminaire sconce | lamp light", "Leuchte | Lampe", "灯具 | 台灯"),
        "desk": _value("bureau secretaire | desk workstation", "Sekretär | Schreibtisch", "写字台 | 书桌"),
        "sideboard": _value("credenza buffet | sideboard cabinet", "Anrichte | Kommode", "餐边柜 | 柜子"),
        "stool": _value("ottoman pouffe | stool footstool", "Polsterhocker | Hocker", "脚凳 | 凳子"),
    },
    "style": {
        "scandinavian": _value("Nordic Danish | scandi scandinavian", "nordisch | skandinavisch", "北欧 | 简约"),
        "vintage": _value("midcentury retro | vintage sixties", "retro | altmodisch", "复古 | 怀旧"),
        "rustic": _value("farmhouse country | rustic cottage", "Landhaus | rustikal", "田园 | 乡村"),
        "boho": _value("bohemian eclectic | boho hippie", "Ethno | Boho", "波西米亚 | 民族风"),
        "industrial": _value("loft factory | industrial urban", "Loft | Industrie", "仓库风 | 工业风"),
    },
    "room": {
        "lounge": _value("parlour salon | lounge den", "Salon | Wohnzimmer", "起居室 | 客厅"),
        "bedroom": _value("chamber boudoir | bedroom guestroom", "Schlafgemach | Schlafzimmer", "睡房 | 卧室"),
        "office": _value("study workroom | office workspace", "Arbeitszimmer | Büro", "书房 | 办公室"),
        "hallway": _value("foyer vestibule | hallway entrance", "Diele | Flur", "门厅 | 玄关"),
        "nursery": _value("nursery playroom | kids children", "Spielzimmer | Kinderzimmer", "儿童房 | 宝宝"),
        "dining": _value("refectory dinette | dining kitchen", "Speisezimmer | Esszimmer", "饭厅 | 餐厅"),
    },
    "material": {
        "wood": _value("oak walnut | wooden timber", "Eiche | Holz", "橡木 | 实木"),
        "metal": _value("steel iron | metal", "Stahl | Metall", "钢制 | 金属"),
        "wicker": _value("rattan cane | wicker woven", "Rattan | geflochten", "藤编 | 编织"),
        "leather": _value("cowhide nappa | leather", "Rindsleder | Leder", "牛皮 | 真皮"),
        "reclaimed": _value("reclaimed upcycled | eco recycled", "Altmaterial | nachhaltig", "再生 | 环保"),
    },
    "need": {
        "cheap": _value("thrifty economy | cheap budget", "Aktionspreis | günstig", "特惠 | 便宜"),
        "small": _value("compact slimline | small tiny", "platzsparend | klein", "紧凑 | 小户型"),
        "sturdy": _value("robust hardwearing | sturdy durable", "strapazierfähig | stabil", "耐用 | 结实"),
        "foldable": _value("collapsible convertible | foldable portable", "zusammenlegbar | klappbar", "可收纳 | 折叠"),
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
    "Halvern", "Corvana", "Lindmoor", "Tessaro", "Quillan", "Penharrow", "Veldhaus", "Ostrava & Finch", "Brindlewood", "Maru",
)  # fmt: skip

MODELS: tuple[str, ...] = (
    "Alva", "Bruno", "Cleo", "Dorrit", "Elmo", "Fenja", "Gustav", "Hedda", "Ivo", "Juno",
    "Kasper", "Liv", "Milo", "Nell", "Otto", "Petra", "Quinn", "Rosa", "Sven", "Thea",
)  # fmt: skip
