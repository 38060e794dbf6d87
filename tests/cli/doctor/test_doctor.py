"""sparkguard-doctor on machines made of files: each finding once there, once not there, once not to be found out."""

import json
import os
import shutil
import subprocess

import pytest
from doctor_tree import GIB, MIB, UNITS, doctor, hold_in_shm, shellcheck  # noqa: F401
from lib.ledger import ENTRY_BYTES, FILE_BYTES, ROOM, VERSION

# ---- each finding ---------------------------------------------------------------------------------------------------


def only_discrete(t):
    t.write("proc/driver/nvidia/gpus/000f:01:00.0/information", "Model: NVIDIA RTX A2000\n")


POOLS = "EnableSystemMemoryPools: 529\n"


def ledger_that_is_none(t):
    t.write(f"dev/shm/sparkguard-{os.geteuid()}/machine.ledger", b"x" * 1000000)


def mount_shm(t, options, *containers):
    lines = [f"shm /ct/{number}/shm tmpfs {each} 0 0" for number, each in enumerate(containers)]
    t.write("proc/self/mounts", "\n".join(["/dev/a / ext4 rw 0 0", f"tmpfs /dev/shm tmpfs {options} 0 0", *lines, ""]))


def history_folder(t):
    folder = t.root / "home/me/.local/state/sparkguard"
    folder.mkdir(parents=True)
    return folder


# id, what breaks it, the state, a part of the sentence, a part of the command
PRESENT = [
    ("library", lambda t: t.remove("usr/local/lib/libsparkguard.so"), "danger", "not found", "make install"),
    ("memory", lambda t: t.meminfo(MemAvailable=60 * GIB, MemFree=50 * GIB), "warning", "60.0 GiB of 120.0 GiB", "report"),
    ("memory", lambda t: t.meminfo(MemAvailable=5 * GIB), "danger", "5.0 GiB of 120.0 GiB", "report"),
    ("swap", lambda t: t.meminfo(SwapTotal=16 * GIB, SwapFree=15 * GIB), "danger", "16.0 GiB of swap is on, 1.0 GiB", "sudo swapoff -a"),
    ("swappiness", lambda t: t.meminfo(SwapTotal=GIB, SwapFree=GIB), "warning", "vm.swappiness is 60:", "vm.swappiness=1"),
    ("swap-at-boot", lambda t: t.write("etc/fstab", "#x\n/swap.img none swap sw 0 0\n"), "warning", "1 line of", "sed"),
    ("ssh-oom", lambda t: t.write("proc/900/oom_score_adj", "0\n"), "warning", "oom_score_adj of 0", "OOMScoreAdjust=-1000"),
    ("ssh-memory", lambda t: t.remove(f"{UNITS}/ssh.service.d/oom.conf"), "warning", "ssh.service keeps 0 B", "MemoryMin=512M"),
    ("ssh-memory", lambda t: t.remove(f"{UNITS}/system.slice.d"), "warning", "MemoryMin of 512.0 MiB, which has no effect", "system.slice"),
    ("oom-score", lambda t: t.write("proc/self/oom_score_adj", "-1000\n"), "warning", "of -1000", "--oom-score-adj=500"),
    ("jail", lambda t: t.write("sys/fs/cgroup/job/memory.max", "max\n"), "warning", "would not bound cudaMalloc", "sparkguard --jail=100G"),
    ("jail", lambda t: t.write("sys/fs/cgroup/job/memory.max", f"{200 * GIB}\n"), "warning", "No cgroup limits", "sparkguard --jail=100G"),
    ("systemd-oomd", lambda t: t.process(7, "systemd-oomd"), "warning", "device memory is in no cgroup", "disable --now"),
    ("page-cache", lambda t: t.meminfo(**{"MemFree": 20 * GIB, "Active(file)": 60 * GIB}), "warning", "64.0 GiB of page cache and 20.0 GiB", "sync && echo 1 | sudo tee /proc/sys/vm/drop_caches"),
    ("huge-pages", lambda t: t.meminfo(HugePages_Total=512, HugePages_Free=500, Hugetlb=GIB), "warning", "1.0 GiB are set aside as huge pages, 1000.0 MiB", "nr_hugepages"),
    ("huge-pages", lambda t: t.meminfo(Hugetlb=64 * GIB), "danger", "64.0 GiB are set aside", "nr_hugepages"),
    ("shared-memory", lambda t: mount_shm(t, "rw,nosuid,size=125829120k"), "warning", "/dev/shm may grow to 120.0 GiB, but the room is only 91.0 GiB", "sudo mount -o remount,size=46592M /dev/shm"),
    ("shared-memory", lambda t: mount_shm(t, "rw,size=90%"), "warning", "/dev/shm may grow to 108.0 GiB", "remount"),
    ("shared-memory", lambda t: mount_shm(t, "rw", "size=200g", "rw,size=64m"), "warning", "/ct/0/shm may grow to 200.0 GiB, but", "docker run --shm-size="),
    ("shared-memory", lambda t: mount_shm(t, "rw,size=110g", "size=0"), "warning", "/ct/0/shm (and 1 more) may grow to ", "docker run --shm-size="),
    ("kexec-handover", lambda t: t.meminfo(CmaTotal=0, CmaFree=9 * GIB), "warning", "sets 9.0 GiB aside for kexec handover (KHO)", "kho=off"),
    ("kexec-handover", lambda t: (t.meminfo(CmaTotal=0, CmaFree=9 * GIB), t.write("proc/cmdline", "ro kho=on quiet kho=off\n")), "warning", "though kho=off is set", "uname -r"),
    ("fragmentation", lambda t: t.blocks(500000, 20000, 0, 0, 0, 0, 0, 0, 0, 1, 0), "warning", "Only 2.0 MiB of 2.1 GiB", "compact_memory"),
    ("fragmentation", lambda t: t.blocks(500000, 20000, 0), "danger", "Only 0 B of 2.1 GiB", "compact_memory"),
    ("unguarded", lambda t: t.process(70, "x", resident=30 * GIB, cmdline=["python3", "a.py"]), "warning", "1 process without the guard holds 6.0 GiB or more; the largest is 70 with 30.0 GiB: python3 a.py", "kill -TERM 70 "),
    ("zombies", lambda t: t.process(70, "python3", parent=60, state="Z"), "warning", "1 zombie waits for its parent (python3 70 of 60)", "kill -TERM 60"),
    ("leftovers", hold_in_shm, "warning", "1 file in /dev/shm, 2.0 MiB, that no process has open (psm_1)", "rm -i /dev/shm/psm_1"),
    ("ledger", ledger_that_is_none, "danger", "machine.ledger cannot be used: it belongs to another version", "ls -la"),
    ("history", lambda t: t.write("home/me/.local/state/sparkguard", ""), "warning", "it is no directory", "ls -ld"),
    ("history", lambda t: history_folder(t).chmod(0o777), "warning", "it is world-writable", "chmod o-w"),
    ("history", lambda t: t.remove("home/me"), "warning", "the folder above it does not exist", "mkdir -p -m 700"),
    ("history", lambda t: t.write("proc/self/mounts", "/dev/a / ext4 rw 0 0\nx:/home /home nfs4 rw 0 0\n"), "warning", "network file system", "SPARKGUARD_HISTORY="),
    ("history", lambda t: t.write("proc/self/mounts", "tmpfs / tmpfs rw 0 0\n"), "warning", "gone with the power", "SPARKGUARD_HISTORY="),
    ("driver", lambda t: t.driver("550.54.14"), "warning", "550.54.14; CUDA 13 needs 580", "nvidia-driver-580"),
    ("driver", lambda t: t.remove("proc/driver"), "warning", "No NVIDIA driver", "modprobe"),
    ("driver-pools", lambda t: (t.driver("610.43.02"), t.write("proc/driver/nvidia/params", POOLS)), "warning", "keeps freed pages", "echo 2 | sudo tee /proc/sys/vm/drop_caches"),
    ("toolkit", lambda t: (t.remove("usr/local/cuda"), t.write("usr/lib64/libcudart.so.12", "")), "warning", "libcudart.so.12 was found, but not that of CUDA 13", "cuda-toolkit-13"),
    ("toolkit", lambda t: t.remove("usr/lib/aarch64-linux-gnu"), "warning", "libcuda.so.1 was not found", "libnvidia-compute"),
    ("architecture", lambda t: t.write("proc/sys/kernel/arch", "riscv64\n"), "warning", "riscv64", "make test"),
]


@pytest.mark.parametrize("name, breaks, state, sentence, mend", PRESENT, ids=[f"{p[0]}-{p[2]}-{i}" for i, p in enumerate(PRESENT)])
def test_what_is_wrong_is_found(doctor, name, breaks, state, sentence, mend):
    before = doctor.json()
    breaks(doctor.tree)
    after = doctor.json()
    (finding,) = [f for f in after["findings"] if f["id"] == name]
    assert finding["state"] == state
    assert sentence in finding["sentence"]
    assert mend in finding["mend"]
    assert before["exit_status"] == 0
    others = {f["id"]: f["state"] for f in after["findings"] if f["state"] != "fine" and f["id"] != name}
    # A pool of half the machine is not usable, and /dev/shm may take half the machine.
    also = {"driver": {"unified"}, "huge-pages": {"memory", "shared-memory"}, "memory": {"shared-memory"}}.get(name, set())
    assert others.keys() <= {"swap", "swappiness", "fragmentation"} | also, others
    assert after["exit_status"] == (4 if "danger" in (state, *others.values()) else 1)


def test_nothing_is_wrong_on_a_machine_that_is_set_up(doctor):
    data = doctor.json()
    assert {f["state"] for f in data["findings"]} == {"fine"}
    assert [f["mend"] for f in data["findings"]] == [None] * len(data["findings"])
    assert all(f["why"].endswith(".") and f["sentence"] for f in data["findings"])
    assert {p[0] for p in PRESENT} | {"settings", "unified", "earlyoom"} == {f["id"] for f in data["findings"]}
    assert len(data["findings"]) == data["fine"]


@pytest.mark.parametrize("place", range(len(PRESENT)))
def test_script_is_clean_whatever_it_mends(doctor, place):
    PRESENT[place][1](doctor.tree)
    shellcheck(doctor.run("--fix-script").stdout)


UNREADABLE = [
    ("library", lambda t: (t.remove("usr/local/lib/libsparkguard.so"), (t.root / "usr/local/lib/libsparkguard.so").mkdir())),
    ("memory", lambda t: t.close("proc/meminfo")),
    ("memory", lambda t: t.meminfo(MemAvailable=None)),
    ("swap", lambda t: t.meminfo(SwapTotal=None)),
    ("swappiness", lambda t: t.write("proc/sys/vm/swappiness", "many\n")),
    ("swap-at-boot", lambda t: t.close("etc/fstab")),
    ("swap-at-boot", lambda t: (t.remove("etc/fstab"), (t.root / "etc/fstab").symlink_to("/dev/zero"))),
    ("ssh-oom", lambda t: t.close("proc/900/oom_score_adj") or t.close(f"{UNITS}/ssh.service.d/oom.conf")),
    ("ssh-memory", lambda t: t.close("lib/systemd/system/ssh.service")),
    ("ssh-memory", lambda t: (t.write(f"{UNITS}/ssh.service.d/oom.conf", "[Service]\nMemoryMin=1G\nMemoryMin=\n"), (t.root / "sys/fs/cgroup/system.slice/ssh.service/memory.min").mkdir(parents=True))),
    ("oom-score", lambda t: t.close("proc/self/oom_score_adj")),
    ("jail", lambda t: t.close("proc/self/cgroup")),
    ("page-cache", lambda t: t.meminfo(**{"Active(file)": None})),
    ("huge-pages", lambda t: t.meminfo(HugePages_Total=None)),
    ("shared-memory", lambda t: t.close("proc/self/mounts")),
    ("fragmentation", lambda t: t.close("proc/buddyinfo")),
    ("zombies", lambda t: (t.remove("proc/1"), t.remove("proc/900"))),
    ("unguarded", lambda t: (t.remove("proc/1"), t.remove("proc/900"))),
    ("earlyoom", lambda t: (t.remove("proc/1"), t.remove("proc/900"))),
    ("systemd-oomd", lambda t: (t.remove("proc/1"), t.remove("proc/900"))),
    ("leftovers", lambda t: t.remove("dev/shm")),
    ("leftovers", lambda t: (hold_in_shm(t), (t.root / "proc/900/maps").mkdir())),
    ("ledger", lambda t: t.write(f"dev/shm/sparkguard-{os.geteuid()}", "")),
    ("history", lambda t: t.close("proc/self/mounts")),
    ("history", lambda t: (t.root / "home/me/.local").symlink_to(".local")),
    ("unified", lambda t: t.remove("proc/driver/nvidia/gpus")),
    ("driver", lambda t: t.close("proc/driver/nvidia/version")),
    ("driver-pools", lambda t: t.driver("610.43.02")),
    ("toolkit", lambda t: t.remove("usr/local/cuda")),
    ("architecture", lambda t: t.close("proc/sys/kernel/arch")),
]


@pytest.mark.parametrize("name, breaks", UNREADABLE, ids=[f"{u[0]}-{i}" for i, u in enumerate(UNREADABLE)])
def test_what_cannot_be_found_out_is_unknown(doctor, name, breaks):
    breaks(doctor.tree)
    finding = doctor.find(name)
    assert finding["state"] == "unknown"
    assert finding["mend"]
    assert doctor.run().returncode in (1, 4)


def test_all_that_can_be_unknown_is_tested():
    never = {"settings", "kexec-handover"}  # without its figures there is no handover
    assert {u[0] for u in UNREADABLE} | never == {p[0] for p in PRESENT} | {"settings", "unified", "earlyoom"}


def test_what_is_unknown_is_a_warning_and_a_number_that_is_unknown_is_null(doctor):
    doctor.tree.close("proc/buddyinfo")
    assert doctor.json()["exit_status"] == 1
    assert doctor.find("fragmentation")["figures"] == {"large_block_bytes": None, "free_bytes": None}


# ---- the finer points -----------------------------------------------------------------------------------------------


def test_swap_that_does_not_fit_into_memory_is_not_to_be_turned_off_first(doctor):
    doctor.tree.meminfo(SwapTotal=64 * GIB, SwapFree=0, MemAvailable=100 * GIB)
    assert doctor.find("swap")["mend"].startswith("sparkguard-report")
    assert "act swapoff" not in doctor.run("--fix-script").stdout


def test_where_the_gpu_has_its_own_memory_swap_is_a_warning(doctor):
    only_discrete(doctor.tree)
    doctor.tree.meminfo(SwapTotal=GIB, SwapFree=GIB, **{"MemFree": GIB, "Active(file)": 60 * GIB})
    assert doctor.find("swap")["state"] == "warning"
    assert doctor.find("page-cache")["state"] == "fine"
    assert "memory of its own" in doctor.find("unified")["sentence"]


@pytest.mark.parametrize(
    "cmdline, swap, state",
    [
        (["earlyoom"], 16, "warning"),
        (["earlyoom", "-r", "3600", "-s", "100"], 16, "fine"),
        (["earlyoom", "-s100,50"], 16, "fine"),
        (["earlyoom", "-m", "4", "-s", "20"], 16, "warning"),
        (["earlyoom", "-S", "1000"], 16, "unknown"),
        ([], 16, "unknown"),
        (["earlyoom"], 0, "fine"),
    ],
)
def test_earlyoom_fires_only_where_it_does_not_wait_for_swap(doctor, cmdline, swap, state):
    doctor.tree.process(50, "earlyoom", cmdline=cmdline)
    doctor.tree.meminfo(SwapTotal=swap * GIB, SwapFree=swap * GIB)
    finding = doctor.find("earlyoom")
    assert finding["state"] == state and "earlyoom runs" in finding["sentence"]
    assert ("would not fire" in finding["sentence"]) == (state == "warning")


@pytest.mark.parametrize(
    "uid, cgroup, runs",
    [
        (0, "0::/user.slice/user-0.slice/session-1.scope", True),
        (61184, "0::/system.slice/{}.service", True),
        (1000, "1:name=systemd:/system.slice/{}.service\n0::/", True),
        (1000, "0::/user.slice/user-1000.slice/session-1.scope", False),
        (1000, "0::/user.slice/user-1000.slice/user@1000.service/app.slice/{}.service", False),
        (1000, "0::/user.slice/system.slice/{}.service", False),
    ],
)
def test_a_process_is_a_daemon_only_if_root_or_the_systems_unit_runs_it(doctor, uid, cgroup, runs):
    """Anybody can give a process such a name."""
    for pid, name in ((50, "earlyoom"), (51, "systemd-oomd")):
        doctor.tree.process(pid, name, uid=uid, cgroup=cgroup.format(name), cmdline=[name, "-s", "100"])
        told = doctor.find(name)["sentence"]
        assert (f"{name} does not run" in told) == (not runs) and (f"{name} runs" in told) == runs


@pytest.mark.parametrize(
    "path, text, state",
    [
        (f"{UNITS}/ssh.service.d/oom.conf", "[Service]\nOOMScoreAdjust=-1000\n", "fine"),
        (f"{UNITS}/ssh.service.d/oom.conf", "OOMScoreAdjust=-1000\n", "warning"),  # in no section
        (f"{UNITS}/ssh.service.d/oom.conf", "[Service]\n#OOMScoreAdjust=-1000\n", "warning"),
        (f"{UNITS}/ssh.service.d/oom.conf", "[Service]\nOOMScoreAdjust=-1000\nOOMScoreAdjust=\n", "warning"),
        (f"{UNITS}/ssh.service.d/oom.conf.bak", "[Service]\nOOMScoreAdjust=-1000\n", "warning"),
        (f"{UNITS}/ssh.service", "[Service]\nOOMScoreAdjust=-1000\n", "fine"),
        ("run/systemd/system/ssh.service.d/a.conf", "[Service]\nOOMScoreAdjust=-1000\n", "fine"),
    ],
)
def test_the_unit_counts_where_no_sshd_listens_yet(doctor, path, text, state):
    doctor.tree.remove("proc/900")
    doctor.tree.remove(f"{UNITS}/ssh.service.d")
    doctor.tree.write(path, text)
    assert doctor.find("ssh-oom")["state"] == state


def test_a_session_that_is_older_than_the_listener_does_not_count(doctor):
    doctor.tree.process(800, "sshd", oom_score_adj=0)
    doctor.tree.process(1900, "sshd", oom_score_adj=0)
    assert doctor.find("ssh-oom")["state"] == "fine"


def test_drop_ins_go_by_name_and_a_folder_with_more_say_hides_the_others(doctor):
    doctor.tree.remove("proc/900")
    doctor.tree.write("run/systemd/system/ssh.service.d/oom.conf", "[Service]\nOOMScoreAdjust=5\n")
    assert doctor.find("ssh-oom")["state"] == "fine"
    doctor.tree.write("usr/lib/systemd/system/ssh.service.d/z.conf", "[Service]\nOOMScoreAdjust=7\n")
    assert doctor.find("ssh-oom")["state"] == "warning"
    (doctor.root / UNITS / "ssh.service.d/z.conf").symlink_to("/dev/null")  # masked
    assert doctor.find("ssh-oom")["state"] == "fine"


def test_a_unit_called_sshd_is_the_same(doctor):
    for path in ("proc/900", "lib/systemd/system/ssh.service", f"{UNITS}/ssh.service.d"):
        doctor.tree.remove(path)
    assert "No SSH server" in doctor.find("ssh-oom")["sentence"]
    doctor.tree.write("usr/lib/systemd/system/sshd.service", "[Service]\nExecStart=/usr/sbin/sshd\n")
    assert "sshd.service does not set" in doctor.find("ssh-oom")["sentence"]
    assert "sshd.service" in doctor.run("--fix-script").stdout


def test_the_kernel_knows_better_than_the_units(doctor):
    doctor.tree.write("sys/fs/cgroup/system.slice/ssh.service/memory.min", f"{512 * MIB}\n")
    doctor.tree.write("sys/fs/cgroup/system.slice/memory.min", "0\n")
    finding = doctor.find("ssh-memory")
    assert finding["state"] == "warning" and "has no effect" in finding["sentence"]
    doctor.tree.write("sys/fs/cgroup/system.slice/memory.min", "max\n")
    assert doctor.find("ssh-memory")["state"] == "fine"


@pytest.mark.parametrize(
    "extra, state, sentence",
    [
        ({"SPARKGUARD_RESERVE": "12G"}, "fine", "2 SPARKGUARD_ variables are"),
        ({"SPARKGUARD_RESERVE": "a lot"}, "warning", "SPARKGUARD_RESERVE=a lot: not a size"),
        ({"SPARKGUARD_LIMT": "12G"}, "warning", "SPARKGUARD_LIMT is not a variable"),
        ({"SPARKGUARD_MODE": "observe"}, "warning", "refuses nothing"),
        ({"SPARKGUARD_WATCHDOG": "off"}, "warning", "WATCHDOG=off"),
        ({"SPARKGUARD_DISABLE": "1"}, "danger", "refuses nothing"),
        ({"SPARKGUARD_JOB_FIRST": "12"}, "fine", "1 SPARKGUARD_ variable is"),
    ],
)
def test_settings(doctor, extra, state, sentence):
    finding = doctor.find("settings", **extra)
    assert (finding["state"], sentence in finding["sentence"]) == (state, True), finding
    assert (finding["mend"] is None) == (state == "fine")


def test_a_misspelt_setting_names_the_one_that_was_meant(doctor):
    assert "SPARKGUARD_LIMIT" in doctor.find("settings", SPARKGUARD_LIMT="1G")["mend"]


def test_unified_is_found_by_name_of_gpu_or_machine_and_not_overridden_silently(doctor):
    assert "by the GPU's name, NVIDIA GB10" in doctor.find("unified")["sentence"]
    assert doctor.find("unified", SPARKGUARD_UNIFIED="off")["state"] == "danger"
    assert doctor.find("unified", SPARKGUARD_UNIFIED="on")["state"] == "fine"
    doctor.tree.remove("proc/driver/nvidia/gpus")
    doctor.tree.write("sys/class/dmi/id/product_name", "NVIDIA_DGX_Spark\n")
    assert "by the machine's name, NVIDIA_DGX_Spark" in doctor.find("unified")["sentence"]
    doctor.tree.remove("sys/class/dmi")
    only_discrete(doctor.tree)
    assert doctor.find("unified", SPARKGUARD_UNIFIED="on")["state"] == "warning"
    doctor.tree.remove("proc/driver")
    assert doctor.find("unified")["state"] == "fine"


def test_a_process_that_asked_the_driver_knows_best_whether_memory_is_unified(doctor, make):
    directory = doctor.root / f"dev/shm/sparkguard-{os.geteuid()}"
    directory.mkdir(mode=0o700)
    with make(state="running").machine(time_ns=1, unified=0).write_live(directory):
        assert "memory of its own, by the driver's answer" in doctor.find("unified")["sentence"]


def test_a_process_that_decides_alone_is_a_warning(doctor, make):
    directory = doctor.root / f"dev/shm/sparkguard-{os.geteuid()}"
    directory.mkdir(mode=0o700)
    with make(state="running", **{"slot.flags": 1}).write_live(directory):
        finding = doctor.find("ledger")
    assert finding["state"] == "warning" and "1 guarded process decides without" in finding["sentence"]
    directory.chmod(0o777)
    assert "world-writable" in doctor.find("ledger")["sentence"]


def test_a_directory_in_which_a_guarded_process_lives_is_a_warning(doctor, make):
    """The records of a user whose programs have all ended are no fault: nothing runs there that could go uncounted."""
    directory = doctor.root / "dev/shm/sparkguard-99999"
    doctor.tree.write("dev/shm/sparkguard-99999/machine.ledger", "")
    make(pid=70).write(directory)
    assert doctor.find("ledger")["state"] == "fine"
    with make(pid=71, state="running").write_live(directory):
        finding = doctor.find("ledger")
    assert finding["state"] == "warning" and "1 more directory" in finding["sentence"] and "SPARKGUARD_DIR" in finding["mend"]


def test_a_machine_without_systemd_is_not_told_to_use_the_jail(doctor):
    doctor.tree.write("sys/fs/cgroup/job/memory.max", "max\n")
    doctor.tree.remove("proc/1")
    finding = doctor.find("jail")
    assert finding["state"] == "warning" and "--memory=100g" in finding["mend"] and "sparkguard --jail" not in finding["mend"]
    (doctor.root / "run/systemd/system").mkdir(parents=True)
    assert doctor.find("jail")["mend"].startswith("sparkguard --jail=100G")


def test_a_machine_without_a_gpu_needs_no_driver(doctor):
    doctor.tree.remove("proc/driver")
    doctor.tree.write("sys/bus/pci/devices/0000:00:01.0/vendor", "0x1af4\n")
    finding = doctor.find("driver")
    assert finding["state"] == "fine" and "no NVIDIA GPU" in finding["sentence"] and finding["mend"] is None
    doctor.tree.write("sys/bus/pci/devices/000f:01:00.0/vendor", "0x10de\n")
    finding = doctor.find("driver")
    assert finding["state"] == "warning" and "modprobe" in finding["mend"]


@pytest.mark.parametrize("total, unused", [(None, None), (0, 0), (64 * MIB, 60 * MIB), (9 * GIB, 9 * GIB), (0, 100 * MIB)])
def test_memory_of_cma_is_no_handover(doctor, total, unused):
    doctor.tree.meminfo(CmaTotal=total, CmaFree=unused)
    doctor.tree.write("sys/kernel/debug/kho/out/scratch_len", "1\n")
    assert doctor.find("kexec-handover")["state"] == "fine"


# ---- what does not apply here ---------------------------------------------------------------------------------------


def absent(doctor):
    return {f["id"] for f in doctor.json()["findings"] if not f["applies"]}


def no_gpu(tree):
    tree.remove("proc/driver")
    tree.write("sys/bus/pci/devices/0000:00:01.0/vendor", "0x1af4\n")


def test_all_applies_to_a_spark(doctor):
    assert absent(doctor) == set()
    assert "does not apply" not in doctor.run().stdout


def test_without_a_gpu_nothing_about_it_is_advised(doctor):
    no_gpu(doctor.tree)
    doctor.tree.meminfo(CmaTotal=0, CmaFree=9 * GIB, **{"MemFree": 20 * GIB, "Active(file)": 60 * GIB})
    doctor.tree.blocks(500000, 20000, 0)
    assert absent(doctor) == {"driver", "driver-pools", "toolkit", "unified", "page-cache", "fragmentation", "kexec-handover"}
    assert doctor.run().returncode == 0
    (line,) = [line for line in doctor.run().stdout.splitlines() if "does not apply here" in line]
    assert line.startswith("-        page-cache, kexec-handover, fragmentation, ") and line.endswith("(no NVIDIA GPU)")


def test_with_memory_of_its_own_a_gpu_needs_none_of_the_machines(doctor):
    only_discrete(doctor.tree)
    doctor.tree.meminfo(CmaTotal=0, CmaFree=9 * GIB)
    assert absent(doctor) == {"page-cache", "kexec-handover", "driver-pools"}


@pytest.mark.parametrize("mark", [".dockerenv", "run/.containerenv"])
def test_in_a_container_the_hosts_services_are_left_to_the_host(doctor, mark):
    doctor.tree.write(mark, "")
    for path in ("proc/900", "lib/systemd/system/ssh.service", f"{UNITS}/ssh.service.d"):
        doctor.tree.remove(path)
    doctor.tree.write("etc/fstab", "/swap.img none swap sw 0 0\n")
    assert absent(doctor) == {"ssh-oom", "ssh-memory", "swap-at-boot", "earlyoom", "systemd-oomd"}
    assert "swap-at-boot, earlyoom, systemd-oomd: does not apply here (the host's, and this is a container)" in doctor.run().stdout


@pytest.mark.parametrize("change, fault", [({}, None), ({0: b"y"}, "another version"), ({8: b"\3"}, None), ({12: b"\1"}, "another version"), ({16: b"\1"}, "another version")])
def test_a_ledger_is_used_if_the_library_would_use_it(doctor, change, fault):
    header = bytearray(b"SPGLEDGR" + b"".join(word.to_bytes(4, "little") for word in (VERSION, ENTRY_BYTES, ROOM)))
    for offset, byte in change.items():
        header[offset : offset + 1] = byte
    path = f"dev/shm/sparkguard-{os.geteuid()}/machine.ledger"
    doctor.tree.write(path, bytes(header).ljust(FILE_BYTES, b"\0"))
    sentence = doctor.find("ledger")["sentence"]
    assert fault in sentence if fault else sentence.startswith("All guarded programs share")
    doctor.tree.write(path, bytes(header).ljust(4096, b"\0"))
    assert "too short" in doctor.find("ledger")["sentence"]


def test_files_in_shared_memory_that_somebody_has_are_not_left_behind(doctor):
    hold_in_shm(doctor.tree)
    hold_in_shm(doctor.tree, name="torch_2")
    hold_in_shm(doctor.tree, bytes=4096, name="sem.small")
    doctor.tree.process(40, "a", maps="7f00-7f01 rw-s 00000000 00:1a 5    /dev/shm/psm_1")
    assert "1 file in /dev/shm" in doctor.find("leftovers")["sentence"]
    (doctor.root / "proc/40/fd").mkdir()
    (doctor.root / "proc/40/fd/3").symlink_to("/dev/shm/torch_2")
    assert doctor.find("leftovers")["state"] == "fine"


def test_a_guarded_process_is_not_unguarded(doctor, make):
    directory = doctor.root / f"dev/shm/sparkguard-{os.geteuid()}"
    directory.mkdir(mode=0o700)
    doctor.tree.process(70, "python3", resident=30 * GIB)
    with make(pid=70, state="running", **{"slot.start_ticks": 1070}).write_live(directory):
        assert doctor.find("unguarded")["state"] == "fine"
    assert doctor.find("unguarded")["state"] == "warning"


@pytest.mark.parametrize("version, state", [("595.10", "fine"), ("1000.1", "fine"), ("nothing", "unknown")])
def test_driver_versions(doctor, version, state):
    doctor.tree.driver(version)
    assert doctor.find("driver")["state"] == state


@pytest.mark.parametrize(
    "version, parameters, state",
    [
        ("580.95.05", None, "fine"),
        ("580.95.05", "RmMsg: \"\"\n", "fine"),
        ("610.43.02", "RmMsg: \"\"\nEnableSystemMemoryPools: 529\n", "warning"),
        ("610.43.02", "EnableSystemMemoryPools: 0\n", "fine"),
        ("610.43.02", None, "unknown"),
        ("nothing", None, "unknown"),
    ],
)
def test_driver_that_keeps_freed_pages_is_told_with_what_empties_its_pool(doctor, version, parameters, state):
    doctor.tree.driver(version)
    if parameters is not None:
        doctor.tree.write("proc/driver/nvidia/params", parameters)
    doctor.tree.meminfo(MemFree=30 * GIB, MemAvailable=31 * GIB, AnonPages=6 * GIB, Cached=4 * GIB)
    finding = doctor.find("driver-pools")
    assert finding["state"] == state
    if state == "warning":
        assert "80.0 GiB of the machine is in no counter" in finding["sentence"]
        assert finding["mend"] == "echo 2 | sudo tee /proc/sys/vm/drop_caches"
        assert "put 2 /proc/sys/vm/drop_caches" in doctor.run("--fix-script").stdout
        assert "NVreg_EnableSystemMemoryPools=0 and a reboot" in finding["why"]
        assert finding["figures"] == {"driver_pools_mask": 529, "unexplained_bytes": 80 * GIB, "living_device_bytes": 0}


def test_a_pool_that_keeps_little_is_no_warning(doctor):
    doctor.tree.write("proc/driver/nvidia/params", POOLS)
    doctor.tree.meminfo(MemFree=100 * GIB, AnonPages=9 * GIB, Cached=4 * GIB)
    finding = doctor.find("driver-pools")
    assert (finding["state"], finding["mend"]) == ("fine", None)
    assert "7.0 GiB of the machine is in no counter" in finding["sentence"]


@pytest.mark.parametrize("pools, drop", [(None, "1"), (POOLS, "3")], ids=["without a pool", "with a pool"])
def test_page_cache_goes_together_with_the_pool_of_the_driver(doctor, pools, drop):
    """1 leaves the pool as it is: whoever wants the page cache gone for a CUDA program wants that memory too."""
    if pools is not None:
        doctor.tree.write("proc/driver/nvidia/params", pools)
    doctor.tree.meminfo(**{"MemFree": 20 * GIB, "Active(file)": 60 * GIB})
    doctor.tree.blocks(500000, 20000, 0)
    assert doctor.find("page-cache")["mend"] == f"sync && echo {drop} | sudo tee /proc/sys/vm/drop_caches"
    assert doctor.find("fragmentation")["mend"].startswith(f"sync && echo {drop} | sudo tee /proc/sys/vm/drop_caches && echo 1 |")
    script = doctor.run("--fix-script").stdout
    assert script.count(f"put {drop} /proc/sys/vm/drop_caches") == 2


def test_driver_that_keeps_freed_pages_of_a_card_takes_none_of_the_machines(doctor):
    doctor.tree.driver("610.43.02")
    doctor.tree.write("proc/driver/nvidia/params", POOLS)
    doctor.tree.write("proc/driver/nvidia/gpus/000f:01:00.0/information", "Model: NVIDIA RTX A2000\n")
    assert doctor.find("driver-pools")["state"] == "fine"


@pytest.mark.parametrize("text, shown", [('{"cuda": {"name": "x", "version" : "13.0.2"}}', ", toolkit 13.0.2."), ("[]", "so.1.")])
def test_the_version_of_the_toolkit_is_shown_where_it_is_known(doctor, text, shown):
    doctor.tree.write("usr/local/cuda/version.json", text)
    assert doctor.find("toolkit")["sentence"].endswith(shown)


def test_a_library_for_another_architecture_is_a_danger(doctor):
    path = doctor.root / "usr/local/lib/libsparkguard.so"
    header = bytearray(doctor.program.read_bytes()[:4096])
    header[18:20] = (243).to_bytes(2, "little")  # RISC-V
    path.unlink()
    path.write_bytes(header)
    finding = doctor.find("library")
    assert finding["state"] == "danger" and "another architecture" in finding["sentence"]
    path.write_text("no library")
    assert doctor.find("library")["state"] == "danger"


def test_the_real_library_is_tried(guarded_tools, tmp_path):
    """Without a root the dynamic linker itself says whether it can be preloaded."""
    for name in ("sparkguard-doctor", "libsparkguard.so"):
        shutil.copy(guarded_tools / name, tmp_path / name)

    def library():
        env = {k: v for k, v in os.environ.items() if not k.startswith("SPARKGUARD_") and k != "LD_PRELOAD"}
        done = subprocess.run([tmp_path / "sparkguard-doctor", "--json"], env=env, capture_output=True, text=True, timeout=60)
        return json.loads(done.stdout)["findings"][0]

    assert library()["state"] == "fine"
    content = (tmp_path / "libsparkguard.so").read_bytes()
    (tmp_path / "libsparkguard.so").write_bytes(content[: len(content) // 8])
    assert library()["state"] == "danger"


def test_where_the_history_is_and_whether_it_is_there_yet(doctor):
    path = doctor.root / "home/me/.local/state/sparkguard"
    assert f"{path}, which the first guarded process makes." in doctor.find("history")["sentence"]
    history_folder(doctor.tree)
    finding = doctor.find("history")
    assert finding["sentence"] == f"The history is kept in {path}." and finding["figures"]["disk_free_bytes"] > 0
    assert doctor.find("history", XDG_STATE_HOME="/home/me/state")["sentence"].split()[5] == f"{doctor.root}/home/me/state/sparkguard,"
    assert "does not exist" in doctor.find("history", SPARKGUARD_HISTORY="/no/such/folder")["sentence"]


@pytest.mark.parametrize("variables, sentence, mend", [
    ({"SPARKGUARD_HISTORY": "off"}, "SPARKGUARD_HISTORY=off: no history is kept.", "unset SPARKGUARD_HISTORY"),
    ({"HOME": ""}, "HOME is not set: no history is kept.", "export SPARKGUARD_HISTORY="),
])  # fmt: skip
def test_a_history_that_is_not_kept_is_a_warning(doctor, variables, sentence, mend):
    finding = doctor.find("history", **variables)
    assert (finding["state"], finding["sentence"]) == ("warning", sentence) and finding["mend"].startswith(mend)


def history_under(doctor, *command):
    """What is found where that command starts the doctor; skips where it may not."""
    if os.geteuid() != 0 or subprocess.run([*command, "true"], capture_output=True).returncode != 0:
        pytest.skip(f"needs root, and a {command[0]} that works here")
    done = subprocess.run([*command, doctor.program, "--json"], env=doctor.environment(), capture_output=True, text=True, timeout=60)
    (finding,) = [f for f in json.loads(done.stdout)["findings"] if f["id"] == "history"]
    assert finding["state"] == "warning" and finding["mend"]
    return finding["sentence"]


@pytest.mark.parametrize("is_there, fault", [(True, "it cannot be written to"), (False, "it is not there and cannot be made")])
def test_a_history_that_cannot_be_written(doctor, is_there, fault):
    """Root without the right to pass over permissions."""
    folder = history_folder(doctor.tree) if is_there else doctor.root / "home/me"
    folder.chmod(0o555)
    assert fault in history_under(doctor, "setpriv", "--bounding-set=-dac_override,-dac_read_search")


def test_a_history_of_somebody_else(doctor):
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    os.chown(history_folder(doctor.tree), 1, 1)
    assert "somebody else's" in doctor.find("history")["sentence"]


def test_a_history_in_the_home_of_somebody_else(doctor):
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    os.chown(doctor.root / "home/me", 1, 1)
    assert "it is not there, and a folder above it is another user's" in doctor.find("history")["sentence"]


@pytest.mark.parametrize("option, said", [("size=1m", "Only 1.0 MiB of the 64 MiB that the history may take"), ("ro", "the file system is read-only")])
def test_a_disk_that_takes_nothing_keeps_no_history(doctor, option, said):
    mount = f'mount -t tmpfs -o mode=0700,{option} none "$0" && exec "$@"'
    assert said in history_under(doctor, "unshare", "-m", "sh", "-c", mount, history_folder(doctor.tree))
