"""What was published about transformers without position embeddings: printed beside ours, never judged against.

Differences of loss in nats are logarithms of the ratio of the perplexities that were published. Almost all rest on
one seed.
"""

from attnlab.claims import Published

HAVIV = "Haviv et al. 2022, arXiv 2203.16634"
KAZEMNEJAD = "Kazemnejad et al. 2023, arXiv 2305.19466"
ONE_SEED = "one seed"

BEHIND_LEARNED = (
    Published(0.0050, "nats", "125 M parameters, the Pile, T 1024", f"{HAVIV}, Table 2", ONE_SEED),
    Published(0.0038, "nats", "1.3 B parameters, the Pile, T 1024", f"{HAVIV}, Table 2", ONE_SEED),
    Published(0.0117, "nats", "1.3 B parameters, the Pile, T 2048", f"{HAVIV}, Table 3", ONE_SEED),
    Published(0.027, "nats", "247 M parameters, WikiText-103, T 512", HAVIV, ONE_SEED),
)
BEHIND_SINUSOIDAL = (
    Published(0.0302, "nats", "125 M parameters, the Pile, T 1024", f"{HAVIV}, Table 2", ONE_SEED),
    Published(0.0131, "nats", "1.3 B parameters, the Pile, T 1024", f"{HAVIV}, Table 2", ONE_SEED),
)
BEHIND_ALIBI = (
    Published(0.1051, "nats", "125 M parameters, the Pile, T 1024", f"{HAVIV}, Table 2", ONE_SEED),
    Published(0.0461, "nats", "1.3 B parameters, the Pile, T 1024", f"{HAVIV}, Table 2", ONE_SEED),
)
BEHIND_ROPE = (
    Published(
        0.08, "nats", "60 M parameters, 5 B tokens of the Pile, T 2048",
        "Gu et al. 2025, arXiv 2410.10781", ONE_SEED,
    ),
    Published(
        0.085, "nats", "Gemma 2B, Wikipedia, T 8192; perplexity 4.8594 against 4.4627",
        "Barbero et al. 2025, arXiv 2410.06205", ONE_SEED,
    ),
    Published(0.06, "nats", "8 B parameters", "Yang et al. 2025, arXiv 2501.18795", ONE_SEED),
)  # fmt: skip
MLM_BEHIND_LEARNED = (
    Published(
        3.59, "nats", "masked LM of RoBERTa-large size; perplexity 147.18 against 4.06",
        HAVIV, ONE_SEED,
    ),
)  # fmt: skip
MASK_EFFECT = (
    Published(
        3.59, "nats",
        "masked LM of RoBERTa-large size (3.59) minus causal LM of 1.3 B parameters (0.004)",
        HAVIV, "two models, two corpora",
    ),
)  # fmt: skip
SHUFFLED_PREFIX = (
    Published(
        6.5, "nats", "247 M parameters, WikiText-103, T 512, 100 inputs: from about 4 to between 10 and 11",
        f"{HAVIV}, prefixes shuffled", "read off a figure",
    ),
)  # fmt: skip
