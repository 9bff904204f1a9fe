"""What the source documents get wrong, and the check that shows it.

The numbers of the documents that were recomputed and hold: 4225, 2.49, u = 59, ±0.177, [.27, .01, .72], .80/.02/.18,
8.87/1.13, 4.0/1.0, 3.91 ... 258.20, 16 384 (One line changed); "strictly lower triangular" is rightly corrected
(On paper L53).
"""

from attnlab.checks import Erratum

ERRATA = (
    Erratum(
        "E1", "Six notes L113",
        "a bias on keys or queries shifts all scores of a row alike and cancels in the softmax",
        "Only a key bias does: q . b is one number per row. A query bias adds b . k, which differs from key to key. And a "
        "key bias stops being useless under RoPE, QK-norm, soft capping, softmax-one and sigmoid attention.",
        ("I9",),
    ),
    Erratum(
        "E2", "Six notes L37",
        "thirty-two nodes, twenty-eight of which any given node is forbidden from seeing",
        "The other pools hold 24 nodes. With the causal mask a node misses 24 (node 8) to 31 (node 1), 27.5 on average.",
        how="arithmetic: 4 pools of 8",
    ),
    Erratum(
        "E3", "Six notes L124",
        "normalising by C is a 2x error for 384 channels in 6 heads of 64",
        "sqrt(6) = 2.449x in the logits, 6x in their variance; 2x is the case of 4 heads.",
        ("M4",),
    ),
    Erratum(
        "E4", "Six notes L115, L124",
        "the slip is corrected in the video's pinned errata, or in its description, at 1:20:05",
        "1:20:05 is when the slip happens; the correction is a sentence in the description, which names that time.",
        how="the description of the video, read second-hand",
    ),
    Erratum(
        "E5", "Six notes L115",
        "the slip is invisible because head_size equals n_embd with one head",
        "True of the script's first head; in the notebook's demonstration C = 32 and head_size = 16, a factor of sqrt(2).",
        how="One line changed L202",
    ),
    Erratum(
        "E6", "Six notes L33; One line changed L168, L287",
        "without positions the model cannot tell abc from cba; attention must have a position encoding",
        "True under a full mask. A causal mask tells them apart at one layer, and the order of predecessors at two.",
        ("I4", "I5"),
    ),
    Erratum(
        "E7", "Six notes L35",
        "the number of predecessors is a positional signal",
        "The softmax normalises the number away: on a constant sequence all outputs are equal. What leaks is how much was "
        "averaged (variance), nearness of averages, and the weight of a token that differs, such as [BOS].",
        ("I3", "M7"),
    ),
    Erratum(
        "E8", "Six notes L61",
        "queries and keys have unit variance at initialisation",
        "Not with the nn.Linear shown there: logit variance 1/9 and peak mass 0.19 instead of 0.36.",
        ("M3",),
    ),
    Erratum(
        "E9", "Six notes L17, L63",
        "multiplied by eight, softmax puts essentially all mass on one entry",
        "0.80 on the vector of One line changed L371; 0.96 at sixteen.",
        ("M5",),
    ),
    Erratum(
        "E10", "Six notes L65-67",
        "announces a table of peak mass and does not contain it",
        "Recomputed: about 0.36 scaled at every head size from 16 on, 0.75 to 0.97 unscaled.",
        ("M2",),
    ),
    Erratum(
        "E11", "Six notes L135",
        "QK-norm was added after attention logits blew up mid-training",
        "ViT-22B diverged after a few thousand steps, at about 8 B parameters; and QK-norm is older (Henry et al. 2020).",
        how="Dehghani et al. 2023, arXiv 2302.05442; Henry et al. 2020, 2010.04245",
    ),
    Erratum(
        "E12", "Six notes L47; One line changed L316",
        "without the mask the loss goes to nearly zero and generation is noise",
        "The target of the last position is never in the input, so the loss has a floor of its entropy / T; copying from "
        "the right also needs positions.",
        how="derived; a training run shows it",
    ),
    Erratum(
        "E13", "On paper L67, against Six notes L133",
        "one design choice separates GPT from BERT: the mask",
        "Mask and objective are one decision: a full mask with next-token prediction is a leak.",
        ("I25",),
    ),
    Erratum(
        "E14", "On paper L40, L74",
        "O(T^2) is worse than an RNN on paper",
        "Per layer n^2 d against n d^2: attention is cheaper while n < d.",
        how="Vaswani et al. 2017, section 4",
    ),
    Erratum(
        "E15", "On paper L28, L60",
        "GPT-2 and everything after it is pre-norm",
        "OLMo 2 and Swin-V2 normalise after the sublayer, Gemma 2 and 3 before and after.",
        how="the models' reports",
    ),
    Erratum(
        "E16", "On paper L35, L68",
        "BERT cannot generate",
        "It can be sampled (Gibbs, mask-predict, masked diffusion); it lacks a cheap exact factorisation.",
        how="Wang and Cho 2019, arXiv 1902.04094",
    ),
    Erratum(
        "E17", "On paper L24",
        "scaled, the distribution is identical at every width",
        "In the limit: peak mass 0.303 at head size 1, 0.345 at 4, about 0.36 from 16 on.",
        ("M2",),
    ),
    Erratum(
        "E18", "Six notes L57, L142",
        "a triangular mask is meaningless on a rectangle",
        "Decoding from a cache is exactly that; one must say through which corner the diagonal runs.",
        ("I21", "I29"),
    ),
    Erratum(
        "E19", "On paper L17, L64",
        "masking after the softmax only makes rows sum to less than one",
        "It also leaks the future: forbidden logits stay in the denominator.",
        ("I12",),
    ),
    Erratum(
        "E20", "One line changed L164",
        "BatchNorm couples samples",
        "It also couples positions, which leaks the future in a causal language model.",
        ("I17",),
    ),
    Erratum(
        "E21", "Six notes L116",
        "-inf is the identity element of the pair of exp and sum",
        "A row with no allowed key becomes NaN, and the usual most negative number gives it uniform attention to "
        "forbidden keys.",
        ("I22",),
    ),
    Erratum(
        "E22", "One line changed L294",
        "sequence 0 does not change by one number, whatever the batch",
        "True at a fixed shape; another batch size may order the sums differently and flip last bits.",
        ("I15",),
    ),
)  # fmt: skip
