"""One large member over several devices: which arrays are split over the `data` axis of the mesh, and how.

    mesh        member x data: rows of devices train different members, the devices of a row share one
    batches     split by example
    parameters  and Adam's moments: whole on every device (`replicated`, data parallel), or each split along its largest
                axis that divides (`fsdp`: Rajbhandari et al. 2020, Zhao et al. 2023). Then a layer gathers its
                parameters when it needs them, and again backward where it is rematerialised

The functions that mark arrays do nothing where the program at hand has no `data` axis to split over, so that
models and updates are written once. XLA's partitioner inserts the communication (Xu et al. 2021, GSPMD).
"""

from collections.abc import Sequence
from typing import TypeVar

import jax
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

MEMBER, DATA = "member", "data"
KINDS = ("replicated", "fsdp")
T = TypeVar("T")  # any pytree of arrays


def check_devices(data: int) -> None:
    """Refuses a `data` axis that the devices of this machine cannot be cut into.

    Raises:
      ValueError: `data` does not divide the number of devices.
    """
    count = jax.device_count()
    if count % data:
        allowed = [n for n in range(1, count + 1) if count % n == 0]
        raise ValueError(
            f"config.mesh.data: must divide the {count} devices, got {data}; allowed: "
            f"{', '.join(map(str, allowed))} (--devices sets their number on a CPU)"
        )


def make_mesh(members: int, data: int = 1) -> Mesh:
    """`member` x `data`: a row of `data` devices for each member, as many rows as there are devices for.

    Raises:
      ValueError: `data` does not divide the number of devices, or a process would have none of them.
    """
    check_devices(data)
    devices = jax.devices()
    rows = min(members, len(devices) // data)
    outside = {d.process_index for d in devices} - {d.process_index for d in devices[: rows * data]}
    if outside:
        raise ValueError(
            f"--processes: got {jax.process_count()} with {jax.local_device_count()} devices each, but {members} members "
            f"on {data} devices each need {rows * data} devices, so {len(outside)} processes would have nothing to do; "
            "allowed: fewer processes, or fewer --devices"
        )
    return jax.make_mesh(
        (rows, data), (MEMBER, DATA), axis_types=(AxisType.Auto, AxisType.Auto),
        devices=devices[: rows * data],
    )  # fmt: skip


def manual_axes(mesh: Mesh) -> set[str]:
    """The axes that `jax.shard_map` takes into its own hands: `data` is left to the partitioner where it is split."""
    return {MEMBER} if mesh.shape[DATA] > 1 else {MEMBER, DATA}


def leaf_spec(shape: Sequence[int], data: int, kind: str) -> P:
    """How one parameter, without its member axis, lies on the `data` axis."""
    divisible = [(-size, axis) for axis, size in enumerate(shape) if size % data == 0]
    if kind == "replicated" or data == 1 or not divisible:
        return P()
    _, axis = min(divisible)
    return P(*[None] * axis, DATA)


def of_members(mesh: Mesh, shapes: T, kind: str) -> T:
    """Shardings of members' states from the shapes of one member's (leaves of `jax.eval_shape`)."""
    return jax.tree.map(
        lambda x: NamedSharding(mesh, P(MEMBER, *leaf_spec(x.shape, mesh.shape[DATA], kind))),
        shapes,
    )


def by_example(tree: T) -> T:
    """Marks arrays whose first axis counts examples; an axis of 1 serves all examples and stays whole."""
    count = _split_over()
    if count == 1:
        return tree
    return jax.tree.map(lambda x: _marked(x, P(DATA)) if x.shape[0] % count == 0 else x, tree)


def whole(x: Array) -> Array:
    """Marks a parameter where it is used: gathered, if it is split."""
    return x if _split_over() == 1 else _marked(x, P())


def parameters(tree: T, kind: str) -> T:
    """Marks parameters, gradients or moments where they are kept."""
    count = _split_over()
    if count == 1:
        return tree
    return jax.tree.map(lambda x: _marked(x, leaf_spec(x.shape, count, kind)), tree)


def _split_over() -> int:
    """Devices that share the member whose program is being traced."""
    mesh = jax.sharding.get_abstract_mesh()
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    return mesh.shape[DATA] if types.get(DATA) == AxisType.Auto else 1


def _marked(x: Array, spec: P) -> Array:
    return jax.lax.with_sharding_constraint(x, spec)
