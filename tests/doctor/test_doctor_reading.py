"""Facts from a machine's files: complete, missing, unreadable, malformed."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import pynvml
import pytest

from doctor_machine import CARD, CPU, FILES, HUGE, build
from isochrone.doctor.facts import CpuQuota, Gpu, IdleState, Interface, Unknown
from isochrone.doctor.reading import gpu
from isochrone.doctor.reading.cpu import read_cpu, read_quotas
from isochrone.doctor.reading.gpu import parse_gpus, read_gpu, read_mps
from isochrone.doctor.reading.machine import read_facts, read_memory, read_network
from isochrone.doctor.reading.tree import Tree


def test_every_fact_of_a_machine_is_read(tmp_path: Path) -> None:
    facts = read_facts(build(tmp_path))
    assert facts.network.local_ports == (32768, 60999)
    assert (facts.network.time_wait, facts.network.listen_overflows) == (7, 0)
    assert facts.cpu.governors == {"policy0": "performance", "policy1": "performance"}
    assert facts.cpu.idle_states == (IdleState("POLL", 0, False), IdleState("C6", 133, True))
    assert facts.cpu.nodes == {0: frozenset(range(4))}
    assert facts.cpu.interfaces == (Interface("eth0", (9000, 9000, 9000, 9000), 1, False),)
    assert facts.cpu.quotas == ()
    assert (facts.memory.huge_pages, facts.memory.huge_page_defrag) == ("madvise", "madvise")
    assert facts.limits.open_files_machine == 9_000_000
    assert facts.cpu.usable
    parts = (facts.network, facts.cpu, facts.memory, facts.limits)
    values = [getattr(part, name) for part in parts for name in part.__dataclass_fields__]
    assert not [value for value in values if isinstance(value, Unknown)]


def test_an_empty_root_is_unknown_throughout(tmp_path: Path) -> None:
    facts = read_facts(Tree(tmp_path))
    for part in (facts.network, facts.memory):
        values = [getattr(part, name) for name in part.__dataclass_fields__]
        assert all(isinstance(value, Unknown) and "No such file" in value.reason for value in values)
    assert isinstance(facts.cpu.quotas, Unknown)
    assert facts.network.somaxconn == Unknown("/proc/sys/net/core/somaxconn: No such file or directory")


@pytest.mark.parametrize("path", [path for path in FILES if FILES[path] and "/queues/" not in path])
def test_malformed_files_raise_nothing(path: str, tmp_path: Path) -> None:
    read_facts(build(tmp_path, {path: "\x00 what is \xff this\n"}))


def test_a_malformed_value_is_quoted(tmp_path: Path) -> None:
    network = read_network(build(tmp_path, {"proc/sys/net/core/somaxconn": "many\n"}))
    assert network.somaxconn == Unknown("/proc/sys/net/core/somaxconn: unexpected content 'many'")


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    tree = build(tmp_path, missing=[f"{HUGE}/enabled"])
    (tmp_path / HUGE / "enabled").mkdir()
    assert read_memory(tree).huge_pages == Unknown(f"/{HUGE}/enabled: Is a directory")


def test_a_virtual_machine_controls_neither_frequency_nor_idle_states(tmp_path: Path) -> None:
    cpu = read_cpu(build(tmp_path, missing=[f"{CPU}/cpufreq", f"{CPU}/cpu0/cpuidle"]))
    assert isinstance(cpu.governors, Unknown)
    assert "virtual machine" in cpu.governors.reason
    assert isinstance(cpu.idle_states, Unknown)


def test_a_virtio_card_has_its_interrupts_one_level_up(tmp_path: Path) -> None:
    tree = build(tmp_path, missing=[f"{CARD}/device"])
    device = tmp_path / "sys/devices/pci/virtio2"
    device.mkdir(parents=True)
    (tmp_path / "sys/devices/pci/msi_irqs").mkdir()
    (tmp_path / "sys/devices/pci/msi_irqs/24").touch()
    (tmp_path / CARD / "device").symlink_to(device)
    assert read_cpu(tree).interfaces == (Interface("eth0", (9000, 9000, 9000, 9000), 1, False),)


def test_interrupts_with_missing_numbers_are_unknown(tmp_path: Path) -> None:
    text = "  CPU0 CPU1\n 24: 1 2 PCI-MSI eth0\n 25: 1\n"
    assert isinstance(read_cpu(build(tmp_path, {"proc/interrupts": text})).interfaces, Unknown)


def test_packet_steering_is_seen(tmp_path: Path) -> None:
    interfaces = read_cpu(build(tmp_path, {f"{CARD}/queues/rx-0/rps_cpus": "00000000,0000000f\n"})).interfaces
    assert not isinstance(interfaces, Unknown)
    assert interfaces[0].steered


# Control groups.


def test_quotas_of_version_2_up_to_the_root(tmp_path: Path) -> None:
    tree = build(
        tmp_path,
        {
            "sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/pod/cpu.stat": "nr_periods 40\nnr_throttled 4\nthrottled_usec 120000\n",
        },
    )
    assert read_quotas(tree) == (CpuQuota("/pod", 1.5, 40, 4, 120.0),)


def test_the_root_of_a_containers_namespace_is_its_own_group(tmp_path: Path) -> None:
    tree = build(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": "50000 100000\n",
            "sys/fs/cgroup/cpu.stat": "nr_periods 1\nnr_throttled 0\nthrottled_usec 0\n",
        },
    )
    assert read_quotas(tree) == (CpuQuota("/", 0.5, 1, 0, 0.0),)


@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
def test_quotas_of_version_1(mount: str, tmp_path: Path) -> None:
    place = f"sys/fs/cgroup/{mount}"
    tree = build(
        tmp_path,
        {
            # The path is the host's, the files are where the container sees them.
            "proc/self/cgroup": "3:cpu,cpuacct:/docker/x\n0::/\n",
            f"{place}/cpu.cfs_quota_us": "200000\n",
            f"{place}/cpu.cfs_period_us": "100000\n",
            f"{place}/cpu.stat": "nr_periods 7\nnr_throttled 2\nthrottled_time 5000000\n",
        },
    )
    assert read_quotas(tree) == (CpuQuota("/", 2.0, 7, 2, 5.0),)


def test_a_quota_whose_counters_are_missing_is_unknown(tmp_path: Path) -> None:
    tree = build(tmp_path, {"sys/fs/cgroup/pod/cpu.max": "150000 100000\n"})
    assert read_quotas(tree) == Unknown("/sys/fs/cgroup/pod/cpu.stat: No such file or directory")


def test_no_mounted_controller_is_unknown(tmp_path: Path) -> None:
    tree = build(tmp_path, missing=["sys/fs/cgroup"])
    assert read_quotas(tree) == Unknown("/sys/fs/cgroup: no CPU controller is mounted")


# GPUs.

ANSWER = """\
0, NVIDIA H200, Enabled, Disabled, Default, GPU-a
1, NVIDIA T4, Disabled, [N/A], Exclusive_Process, GPU-b
"""


def test_the_answer_of_nvidia_smi() -> None:
    assert parse_gpus(ANSWER, "GPU-a\nGPU-a\nGPU-c\n") == (
        Gpu(0, "NVIDIA H200", True, False, 2, "Default"),
        Gpu(1, "NVIDIA T4", False, False, 0, "Exclusive_Process"),
    )
    assert parse_gpus("", "") == ()


def test_what_nvidia_smi_does_not_know_is_unknown() -> None:
    gpus = parse_gpus("0, NVIDIA X, [Unknown Error], Enabled, [N/A], GPU-a\n", "")
    assert gpus == (Gpu(0, "NVIDIA X", Unknown("nvidia-smi: [Unknown Error]"), True, 0, Unknown("nvidia-smi: [N/A]")),)
    assert isinstance(parse_gpus("Failed to initialize NVML: Unknown Error\n", ""), Unknown)


def test_the_library_has_what_it_is_asked_for() -> None:
    """No test has a GPU, so a wrong name would be found only by users."""
    names = set(re.findall(r"\b(?:nvml[A-Z]|NVMLError)\w*", inspect.getsource(gpu)))
    assert len(names) >= 9
    assert [name for name in names if not hasattr(pynvml, name)] == []


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only GPU program of this machine, which has no nvidia-ml-py."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "nvidia-smi"


def test_without_the_library_nvidia_smi_is_asked(nvidia_smi: Path, tmp_path: Path) -> None:
    assert read_gpu(Tree(tmp_path)).gpus == ()
    nvidia_smi.write_text(
        "#!/bin/sh\n"
        'case "$1 $2" in\n'
        '"--query-gpu=index,name,persistence_mode,mig.mode.current,compute_mode,uuid --format=csv,noheader")\n'
        '  echo "0, NVIDIA H200, Disabled, Disabled, Default, GPU-a";;\n'
        '"--query-compute-apps=gpu_uuid --format=csv,noheader") echo GPU-a;;\n'
        "*) exit 3;;\n"
        "esac\n"
    )
    nvidia_smi.chmod(0o755)
    assert read_gpu(Tree(tmp_path)).gpus == (Gpu(0, "NVIDIA H200", False, False, 1, "Default"),)


def test_an_nvidia_smi_that_fails_is_unknown(nvidia_smi: Path, tmp_path: Path) -> None:
    nvidia_smi.write_text("#!/bin/sh\nexit 9\n")
    nvidia_smi.chmod(0o755)
    gpus = read_gpu(Tree(tmp_path)).gpus
    assert isinstance(gpus, Unknown)
    assert "exit status 9" in gpus.reason


def test_mps_is_seen_by_its_process(tmp_path: Path) -> None:
    tree = build(tmp_path, {"proc/17/comm": "python\n"})
    assert read_mps(tree) is False
    build(tmp_path, {"proc/18/comm": "nvidia-cuda-mps\n"})
    assert read_mps(tree) is True
    assert isinstance(read_mps(Tree(tmp_path / "nowhere")), Unknown)
