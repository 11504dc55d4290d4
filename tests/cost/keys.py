"""The setup that the tests' profiles were measured on."""

from smartree.cost import ProfileKey

KEY = ProfileKey(
    device="cpu",
    model="demo",
    drafter="ngram",
    dtype="bfloat16",
    attention="smartree",
    threads=2,
    torch="2.9.0",
    transformers="5.16.1",
    smartree="0.1.0",
)
