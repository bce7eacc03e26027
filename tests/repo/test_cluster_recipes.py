"""The files of examples/clusters, as far as one can know without a cluster."""

import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CLUSTERS = ROOT / "examples" / "clusters"


def replicas():
    job = yaml.safe_load((CLUSTERS / "mpijob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    return job["spec"]["slotsPerWorker"], job["spec"]["mpiReplicaSpecs"]


def test_the_script_of_slurm_is_one_of_bash_and_asks_for_a_rank_a_gpu():
    path = CLUSTERS / "job.sbatch"
    subprocess.run(["bash", "-n", path], check=True)
    lines = path.read_text().splitlines()
    pairs = [line.removeprefix("#SBATCH --").partition("=") for line in lines]
    asked = {name: value for name, _, value in pairs}
    assert asked["ntasks-per-node"] == asked["gpus-per-node"]


def test_the_job_of_kubernetes_starts_a_rank_for_each_slot():
    slots, of = replicas()
    (launcher,) = of["Launcher"]["template"]["spec"]["containers"]
    command = launcher["command"]
    assert int(command[command.index("-n") + 1]) == slots * of["Worker"]["replicas"]
    (worker,) = of["Worker"]["template"]["spec"]["containers"]
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == slots


@pytest.mark.all
def test_the_pods_of_kubernetes_are_valid():
    validate = pytest.importorskip("kubernetes_validate", reason="`make test-all` installs it")
    for name, replica in replicas()[1].items():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name.lower()}}
        validate.validate(pod | replica["template"], validate.latest_version(), strict=True)


def test_what_an_image_is_made_of_is_there():
    text = (CLUSTERS / "Containerfile").read_text()
    assert "third_party/system-packages.sh" in text
    assert (ROOT / "third_party" / "system-packages.sh").exists()
