"""A child program of `engines.chip`: compiles programs for a TPU that is not there, and reports what they would take.

libtpu compiles for a described chip, without one. Imports no torch: TorchTPU and jax cannot share a process here.
"""

import json
import sys
from pathlib import Path
from typing import Any

from jax._src.interpreters import mlir
from jax.experimental import topologies
from jaxlib import xla_client
from jaxlib.mlir.dialects import stablehlo


def _compile(device: Any, artifact: Path) -> dict[str, int | str]:
    with mlir.make_ir_context() as context:
        module = stablehlo.deserialize_portable_artifact(context, artifact.read_bytes())
        try:
            compiled = device.client.compile(module, xla_client.DeviceList((device,)), xla_client.CompileOptions())
        except xla_client.XlaRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            return {"refused": str(error).splitlines()[0].partition(" HLO module")[0]}
    memory, costs = compiled.get_compiled_memory_stats(), compiled.cost_analysis()
    return {
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "peak_bytes": memory.peak_memory_in_bytes,
        "flops": int(costs["flops"]),
        "bytes_accessed": int(costs["bytes accessed"]),
    }


def main(folder: Path, topology: str) -> None:
    """Write `report.json` into the folder: what each `.mlir` file there takes on a chip of `topology`, by its name."""
    host = topologies.get_topology_desc(platform="tpu", topology_name=topology, chips_per_host_bounds=(1, 1, 1))
    report = {artifact.stem: _compile(host.devices[0], artifact) for artifact in sorted(folder.glob("*.mlir"))}
    (folder / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
