"""Every knob once. Other files in this folder start from here and change what they are about.

    attnlab sweep --config configs/base.py --config.steps=200 --workdir runs/try     (about 20 s on 2 cores)

DATA knobs are arguments of the compiled program: members that differ only in them train in ONE program.
STATIC knobs change shapes or structure: members that differ in them are separate programs.
"""

from ml_collections import ConfigDict


def get_config(arg: str = "") -> ConfigDict:
    """The base configuration; it has no presets, so `arg` must be empty."""
    if arg:
        raise ValueError(
            f"configs/base.py has no presets: got {arg!r}, allowed: nothing after the file name"
        )
    c = ConfigDict()

    # What is trained on.
    c.corpus = (
        "shakespeare"  # STATIC  | tinyshakespeare | text:PATH | hf:NAME | tokens:PATH | random:V
    )
    c.tokenizer = "char"  # STATIC  char | bytes | bpe:V, trained on the training split; for texts
    c.packing = "none"  # STATIC  none | documents: a window's documents do not see each other
    c.context = 32  # STATIC  T, tokens the model sees at once
    c.batch_size = 32  # STATIC  windows per update
    c.accumulation = 1  # STATIC  micro-batches per update, must divide batch_size
    c.steps = 1000  # DATA    updates

    # Who may read whom, what is asked, and how a token knows where it stands.
    c.mask = "causal"  # DATA    text form of attnlab.masks, e.g. "causal & sliding_window(8)"
    c.objective = "next_token"  # DATA    | next_token(0..2) | prefix_lm(length) | masked_lm(rate)
    c.bos = False  # DATA    every window begins with [BOS]
    c.order = "natural"  # DATA    of a window's tokens: natural | shuffled | constant
    c.positions = "learned"  # DATA    none | learned | sinusoidal | rope | alibi, joined by +
    c.arm = (
        ""  # label of the group of seeds this member belongs to; empty: made from the three above
    )

    c.model = ConfigDict()
    c.model.layers = 4  # STATIC
    c.model.width = 64  # STATIC  D
    c.model.heads = 4  # STATIC  N, must divide the width
    c.model.kv_heads = 4  # STATIC  K, must divide the heads
    c.model.mlp_ratio = 4  # STATIC  F / D
    c.model.mixer = "attention"  # STATIC  | gru: causal, as many parameters; to compare with
    c.model.norm = "layernorm"  # DATA    | rmsnorm | batchnorm | batchnorm_by_position | none
    c.model.norm_placement = "pre"  # DATA    pre | post | sandwich
    c.model.residual = 1.0  # DATA    the stream times this, plus the sublayer's output
    c.model.attention_branch = 1.0  # DATA    multiplies the output of attention; 0: none
    c.model.mlp_branch = 1.0  # DATA    the same for the MLP
    c.model.init_gain = 1.0  # DATA    multiplies kernels at the start; 0.577: PyTorch's variance
    c.model.position_dims = (
        0  # DATA    of the width, for learned positions alone; 0: added to tokens
    )
    c.model.qk_norm = "none"  # DATA    none | layernorm | rmsnorm | l2
    c.model.logit_scale = (
        "inv_sqrt_head_dim"  # DATA  | inv_head_dim | inv_sqrt_width | none | uniform | a number
    )
    c.model.learn_logit_scale = False  # DATA    a factor per layer that starts at 1
    c.model.softcap = "none"  # STATIC  none | a number: logits become c tanh(logits / c)
    c.model.attention = "auto"  # STATIC  auto | dense | blockwise | ...
    c.model.activations = "float32"  # STATIC  float32 | bfloat16; logits and softmax stay float32
    c.model.remat = "none"  # STATIC  done again backward: none | dots (all but matmuls) | block

    c.mesh = ConfigDict()
    c.mesh.data = 1  # STATIC  devices that share one member; must divide devices and micro-batches
    c.mesh.sharding = "replicated"  # STATIC  | fsdp: parameters and moments split over them

    c.optimizer = ConfigDict()
    c.optimizer.learning_rate = 4e-3  # DATA    peak
    c.optimizer.warmup_steps = 50  # DATA
    c.optimizer.final_fraction = 0.1  # DATA    learning rate at the end / peak
    c.optimizer.weight_decay = 0.1  # DATA    decoupled; on matrices only
    c.optimizer.clip_norm = 1.0  # DATA    global gradient norm; 1e9 never clips
    c.optimizer.b1 = 0.9  # DATA
    c.optimizer.b2 = 0.99  # DATA

    c.seed = ConfigDict()
    c.seed.init = 0  # DATA    parameters
    c.seed.data = 0  # DATA    windows and masked places: equal seeds see equal text

    c.log_every = 20  # STATIC  updates per call of the program and per row of metrics
    c.eval = ConfigDict()
    c.eval.every = 200  # STATIC  updates between validations, a multiple of log_every
    c.eval.windows = 512  # STATIC  validation windows, a multiple of batch_size
    c.eval.final_windows = 2048  # STATIC  the same at the end
    return c
