"""Identities of built-in functions as the lineages of existing datasets record them.

The fingerprint of a run contains the module, the source hash and the file hash of each function. Those of a built-in function
are fixed here, so that renaming its module or editing its documentation does not invalidate datasets and interrupted runs.
When a change alters the results of a function, remove its line: it is then identified by its current source, like any
function. New functions need no line.
"""

from __future__ import annotations

#: Name -> module that held it, sha256 of its source.
_SOURCES = {
    "clip_rewards": ("rewards", "85d53f2514ba68d8a333fbb3d0f69a174ff0e756c0dfeacba258f79385ba4c0e"),
    "filter_episodes": ("filter", "ca60d2219a37f8fd656d1002f584b2f354095008247a66a12e5d4f20edb42c1f"),
    "grayscale": ("grey", "f5f583eff9a17d30538ec44047cd17c85929b27574ec98b04094dfe8ff7a28ba"),
    "n_step": ("multi_step", "000a9b3dfcc22cdf56cc8928451df9a7e84ea34adaba6545d1e6336c202131b0"),
    "normalize_observations": ("normalize", "c570e41cb5720ef96572bbec89b2808dabcfba99f2a38a5b3b865c4318020654"),
    "relabel_rewards": ("relabel", "aaa8bb5223f65a813c53990b85d4e77dc4fc5eae12a967eda6ff876921e2fa94"),
    "resize_frames": ("resize", "6cf88b04f9ff2523431e40eb22c6d612238101509078dc30f24d6bd00403aa5a"),
    "returns_to_go": ("returns", "8d25bd6021247d0d8b0717b7e96087c01222f88f3c7fd7d821088672671e0ac6"),
    "scale_rewards": ("rewards", "fc87e13853ecf2cee8b10fb4b7be4e8eeefea6989212ba3f10f15e36f52c69cd"),
    "select_keys": ("select", "2ff155ae0b1e5f9a2ede927042727670dcb52bf2f51e5077b6d4160a021cae54"),
    "subsample": ("thin", "e85b27d06f8fb4ad24dae785976630fcf85861db7d4aa88b7ebdf0928ba78264"),
    "to_float": ("cast", "73db1dbe010419760fe53402dbab52274c59909a957af22f8829ae90e04ed44f"),
}
#: Module -> sha256 of its file.
_FILES = {
    "rewards": "d4e130ef2dfecba5cbb4a88b48447c2a10c9e58d3f2075d63374f65c62571222",
    "filter": "c79feebbfe7c48573ef1ca3ec2b9379141afb2de769cca8ff9c95c218ee01de9",
    "grey": "877f02422f658ee6b91529a4435751a6671632bb3e479c6bb37fa08783c1697e",
    "multi_step": "100adaedb99b1ac220eb546d149eea2e19090df6527f38eeeeb520ba0ea97c7b",
    "normalize": "9419b31ff96c48627d2f8738db7bf67bc3171f31d65a714c092796fcfdfef0b5",
    "relabel": "9b4b0d0a3fcece5397da91ffba4a5ff8ee56a36bd059cd0e9d58135d926d7cbf",
    "resize": "0d2d38fbe7c003b42752bed3ea7dbc5b4f5eb2f1f98a1fdea13c52ca4ab0e310",
    "returns": "84d13e2f5f7370d5ffd54e3f7ce1f3d762294e16597040192e91ff5b8a382a6a",
    "select": "826ceac2833519df41d2d98e9a1440baa080b3b363307da3154a1958f811e91e",
    "thin": "45f22a9792023f1ef23b128fbe2c053c0dc7223324717c2bf844e7e67fc4f3bc",
    "cast": "d631e62790543afce4fc2097cf4f85e71377b84976ca27a88218334f1f691604",
}


def recorded_identity(name: str) -> tuple[str, str, str] | None:
    """Qualified name, content hash and file hash of a built-in function; None where they are not fixed."""
    if name not in _SOURCES:
        return None
    module, source = _SOURCES[name]
    return f"{__package__}.{module}:{name}", source, _FILES[module]
