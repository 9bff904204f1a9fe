"""Windows from the host are those of the device: the same function of (seed, step), whatever came before."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from attnlab import population
from attnlab.checkpoints import Checkpoints
from attnlab.data import corpora, feed, sampling, token_files
from attnlab.data.feed import HostFeed

SIZES = {"batch_size": 4, "length": 10}
SEEDS = (3, 0, 3)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A token file of documents, memory-mapped."""
    root = tmp_path_factory.mktemp("feed")
    generator = np.random.default_rng(0)
    for i in range(60):
        text = "".join(generator.choice(list("abcdefgh"), generator.integers(1, 60)))
        (root / f"{i:02d}.txt").write_text(text)
    token_files.write(corpora.load(f"text:{root}"), root / "made")
    return corpora.load(f"tokens:{root / 'made'}")


@pytest.fixture
def host(corpus):
    made = HostFeed(corpus, SEEDS, updates=5, documents=True, **SIZES)
    yield made
    made.close()


def on_device(corpus, seed, step):
    data = jax.device_put(feed.device_tokens(corpus, documents=True))
    return jax.jit(sampling.cut, static_argnames=tuple(SIZES))(data, seed, step, **SIZES)


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("start", [0, 5, 100_000])
def test_a_chunk_holds_the_batches_that_the_device_would_cut_bit_for_bit(corpus, host, start):
    assert isinstance(corpus.train.base, np.memmap)
    chunk = host.chunk(start)
    assert chunk.tokens.shape == chunk.segments.shape == (3, 5, 4, 10)
    assert chunk.tokens.dtype == np.uint8
    for member, seed in enumerate(SEEDS):
        for update in range(5):
            mine = jax.tree.map(lambda x, m=member, u=update: x[m, u], chunk)
            same(mine, on_device(corpus, seed, start + update))
            same(mine, host.update(member, start + update))
    assert chunk.segments.max() > 0


def test_what_was_cut_ahead_changes_nothing(corpus, host):
    """In order, again, and after a jump: a restart has nothing cut ahead."""
    fresh = {}
    for step in (0, 5, 10, 15):
        other = HostFeed(corpus, SEEDS, updates=5, documents=True, **SIZES)
        fresh[step] = other.chunk(step)
        other.close()
    for step in (0, 5, 10, 0, 15, 15, 5):
        same(host.chunk(step), fresh[step])


def test_without_documents_there_are_no_segments(corpus):
    made = HostFeed(corpus, (0,), updates=2, documents=False, **SIZES)
    assert made.chunk(0).segments is None
    made.close()


def test_an_error_ahead_is_raised_where_the_chunk_is_asked_for(corpus, monkeypatch):
    made = HostFeed(corpus, (0,), updates=2, documents=False, **SIZES)
    made.chunk(0)
    made._ahead[1].result()
    monkeypatch.setattr(made, "_cut", lambda *_: (_ for _ in ()).throw(OSError("disk gone")))
    made.chunk(2)
    with pytest.raises(OSError, match="disk gone"):
        made.chunk(4)
    made.close()


def test_the_place_is_chosen_by_size_and_can_be_asked_for(corpus, monkeypatch):
    assert not feed.on_host(corpus)
    assert feed.on_host(corpus, "host")
    monkeypatch.setattr(feed, "ON_DEVICE_BYTES", corpus.train.nbytes - 1)
    assert feed.on_host(corpus)
    assert not feed.on_host(corpus, "device")
    with pytest.raises(ValueError, match="data_on: got 'disk'; allowed: auto, device, host"):
        feed.on_host(corpus, "disk")


def test_segments_are_counted_from_the_first_document_of_each_window():
    """Against counting by hand; in numpy and compiled."""
    generator = np.random.default_rng(1)
    for trial in range(50):
        starts = np.unique(np.append(0, generator.integers(1, 100, generator.integers(0, 40))))
        first = generator.integers(0, 90, (2, 3))
        document = np.array([(starts <= i).sum() for i in range(100)])
        by_hand = np.array([[document[f : f + 10] - document[f] for f in row] for row in first])
        found = sampling.segments(starts.astype(np.int64), first, 10)
        np.testing.assert_array_equal(found, by_hand)
        assert found.dtype == np.int32
        if trial == 0:
            there = sampling.segments(jnp.asarray(starts, "int32"), jnp.asarray(first), 10)
            np.testing.assert_array_equal(there, by_hand)
            assert there.dtype == np.int32


def test_validation_windows_carry_their_documents(corpus):
    made = feed.evaluation(corpus, "validation", count=7, length=10, documents=True)
    plain = feed.evaluation(corpus, "validation", count=7, length=10, documents=False)
    same(made.tokens, sampling.evaluation_windows(corpus.validation, count=7, length=10))
    same(made.tokens, plain.tokens)
    assert plain.segments is None
    starts = sampling.evaluation_starts(len(corpus.validation), count=7, length=10)
    documents = np.searchsorted(
        corpus.documents["validation"], starts[:, None] + np.arange(10), "right"
    )
    same(made.segments, documents - documents[:, :1])


# Training

program_of = functools.cache(population.Program)


def train(configs, **kwargs):
    """Trains with one program per task, mesh and place for all tests here, instead of one per call."""
    with pytest.MonkeyPatch.context() as patch, tiny.quick_compilation():
        patch.setattr(population, "Program", program_of)
        return tiny.train(configs, **kwargs)


@pytest.fixture(scope="module")
def arms(corpus):
    """Packed members with other masks, objectives and positions; three, so that two devices hold a place too many."""
    kinds = (("causal", "next_token", "learned+rope"), ("~causal", "next_token(2)", "alibi"),
             ("full & sliding_window(4)", "masked_lm(0.4)", "none"))  # fmt: skip
    return [
        tiny.config({"seed.data": i}, corpus=corpus.name, packing="documents", steps=12,
                    mask=mask, objective=objective, positions=positions)
        for i, (mask, objective, positions) in enumerate(kinds)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def from_host(arms):
    return train(arms, data_on="host")


def test_training_from_the_host_is_training_from_the_device_in_one_trace(arms, from_host):
    device, _ = train(arms, data_on="device")
    host, report = from_host
    assert report.traces == {"train": 1, "evaluate": 1}
    for i in range(3):
        for name in ("train/loss", "val/loss"):
            assert np.isfinite(device.column(i, name)).all()
            np.testing.assert_allclose(host.column(i, name), device.column(i, name), rtol=1e-6)


def test_the_loss_is_given_in_bits_per_byte_too(corpus, from_host):
    for _, summary in from_host[0].ends.values():
        assert summary["val/bpb"] == pytest.approx(summary["val/loss"] * corpus.bits_per_nat())
    assert corpus.bits_per_nat() == pytest.approx(1 / np.log(2)), "a character is a byte here"


def test_a_run_from_the_host_that_is_stopped_and_resumed_is_one_that_was_not(
    arms, from_host, tmp_path
):
    asked = []

    def stop():
        asked.append(None)
        return len(asked) > 4

    with Checkpoints(tmp_path / "c") as kept:
        cut, report = train(arms, data_on="host", checkpoints=kept, should_stop=stop)
    assert report.interrupted
    with Checkpoints(tmp_path / "c") as kept:
        rest, _ = train(arms, data_on="host", checkpoints=kept)
    whole, _ = from_host
    for i in range(3):
        joined = {row["step"]: row for row in cut.rows[i] + rest.rows[i] if "train/loss" in row}
        alone = {row["step"]: row for row in whole.rows[i] if "train/loss" in row}
        assert 0 < len([r for r in cut.rows[i] if "train/loss" in r]) < len(alone)
        assert joined == alone
        assert rest.ends[i] == whole.ends[i]


@pytest.mark.slow
def test_members_fed_as_on_accelerators_train_as_those_that_are_mapped(monkeypatch):
    """Three members on two devices: one place is padding, and one member ends early."""
    configs = [tiny.config({"seed.data": s}, steps=n) for s, n in ((0, 8), (1, 8), (0, 4))]
    mapped, _ = train(configs, data_on="host")
    monkeypatch.setattr(population, "_mapped", jax.vmap)
    monkeypatch.setattr(population, "_skip_inactive", lambda chunk: chunk)
    with tiny.quick_compilation():
        vmapped, report = tiny.train(configs, data_on="host")
    assert report.traces["train"] == 1
    for i in range(3):
        np.testing.assert_allclose(
            vmapped.column(i, "train/loss"), mapped.column(i, "train/loss"), rtol=1e-5
        )
