#!/bin/sh
# Made by sparkguard-doctor 0.1.0. Read it, take out what you do not want, run it as root.
# Each file that it replaces is kept beside it as FILE.sparkguard, as it was before the first time.
set -eu

failed=
root=${SPARKGUARD_SYSTEM_ROOT:-}  # a tree of files to try it on: commands are only named there
[ "$root" != / ] || root=
if [ -z "$root" ] && [ "$(id -u)" -ne 0 ]; then
    echo 'run this as root: sudo sh FILE' >&2
    exit 1
fi

say() { printf '%s\n' "$*"; }

act() {
    if [ -n "$root" ]; then
        echo "not run below $root: $*"
    else
        "$@" || failed="$failed$* (exit $?); "
    fi
}

keep() {
    [ ! -e "$root$1" ] || [ -e "$root$1.sparkguard" ] || cp -p "$root$1" "$root$1.sparkguard"
}

put() { # TEXT FILE; a file of /proc or /sys is a switch, any other is kept
    case $2 in
    /proc/* | /sys/*)
        [ -w "$root$2" ] || { failed="$failed$2 is not there to write to; "; return; }
        ;;
    *)
        mkdir -p "$root${2%/*}"
        keep "$2"
        ;;
    esac
    printf '%s\n' "$1" >"$root$2" || failed="$failed$2 was not written; "
}

# ---- danger: swap
# 16.0 GiB of swap is on, 1.0 GiB of it used.
# Why: When memory runs out, the kernel swaps out all other programs, SSH first, while CUDA's pages stay: the machine freezes and no job fails.
# Undo: swapon -a
act swapoff -a

# ---- warning: swappiness
# vm.swappiness is 60: the kernel swaps programs out to keep page cache.
# Why: If swap stays on, a low swappiness makes the kernel drop page cache before it swaps programs out.
# Undo: rm /etc/sysctl.d/90-sparkguard.conf; sysctl vm.swappiness=60, or what it was
put 1 /proc/sys/vm/swappiness
put 'vm.swappiness = 1' /etc/sysctl.d/90-sparkguard.conf

# ---- warning: swap-at-boot
# 1 line of /etc/fstab turns swap on at each boot.
# Why: Swap that was turned off by hand is on again after the next boot.
# Undo: mv /etc/fstab.sparkguard /etc/fstab
keep /etc/fstab
sed -i -E 's/^[[:space:]]*[^#[:space:]][^[:space:]]*[[:space:]]+[^[:space:]]+[[:space:]]+swap([[:space:]]|$)/#&/' \
    "$root/etc/fstab"

# ---- warning: ssh-oom
# sshd runs with an oom_score_adj of 0.
# Why: If the kernel's OOM killer ends sshd, nobody can log in to help. Programs started in a session may inherit the score: start jobs with sparkguard --oom-score-adj=500.
# Undo: rm /etc/systemd/system/ssh.service.d/sparkguard.conf /etc/systemd/system/system.slice.d/sparkguard.conf; systemctl daemon-reload
put '[Service]
OOMScoreAdjust=-1000
MemoryMin=512M' /etc/systemd/system/ssh.service.d/sparkguard.conf
put '[Slice]
MemoryMin=512M' /etc/systemd/system/system.slice.d/sparkguard.conf
act systemctl daemon-reload
act systemctl try-restart ssh.service

# ---- warning: ssh-memory
# ssh.service keeps 0 B of memory for itself (MemoryMin).
# Why: If sshd is swapped out or reclaimed, it answers too late; the kernel heeds MemoryMin only as far as every cgroup above has as much.
# Fixed above.

# ---- warning: earlyoom
# earlyoom runs and would not fire: it waits until less than 10 % of 16.0 GiB of swap is free as well.
# Why: It polls, and 30 GB can go in one second; then it ends the process with the largest resident size, which excludes device memory.
# For you to decide: sudo swapoff -a  # or earlyoom -s 100, which looks at memory alone

# ---- warning: systemd-oomd
# systemd-oomd runs (51): it acts on the pressure and swap of cgroups, and device memory is in no cgroup.
# Why: A cudaMalloc raises the pressure of others only when it is too late; systemd-oomd then ends the cgroup under pressure: often the login session, not the job.
# Undo: systemctl enable --now systemd-oomd.service
act systemctl disable --now systemd-oomd.service

# ---- warning: huge-pages
# 1.0 GiB are set aside as huge pages, 1.0 GiB of the default size unused.
# Why: Only programs written for them can use these pages, CUDA cannot, and MemAvailable excludes them.
# Undo: sysctl vm.nr_hugepages=N; they come back at boot where sysctl.conf or the kernel's command line asks for them
for pool in "$root"/sys/kernel/mm/hugepages/*/nr_hugepages; do
    put 0 "${pool#"$root"}"
done

# ---- danger: fragmentation
# Only 0 B of 2.1 GiB free lie in blocks of 2 MiB and more.
# Why: The GPU's pages of 2 MiB have no smaller fallback: if all blocks are smaller, cudaMalloc fails however much memory is available.
# Undo: nothing to undo
act sync
put 3 /proc/sys/vm/drop_caches
put 1 /proc/sys/vm/compact_memory

# ---- warning: unguarded
# 1 process without the guard holds 6.0 GiB or more; the largest is 70 with 30.0 GiB: python3 train.py
# Why: Requests of an unguarded process are not judged; it takes memory that was promised to guarded processes, and its device memory does not show in its size.
# For you to decide: kill -TERM 70  # and start it again under sparkguard

# ---- warning: zombies
# 1 zombie waits for its parent (python3 71 of 70).
# Why: A zombie can hold memory: if its main thread ended and others did not, they keep all of it. A launcher that hangs and a driver that hangs leave such processes.
# For you to decide: ps -o user,etime,args -p 70  # the parent that does not collect; if it hangs: kill -TERM 70

# ---- warning: ledger
# 1 more directory of guarded programs beside /ROOT/dev/shm/sparkguard-UID: /ROOT/dev/shm/sparkguard-99999; programs there are not counted.
# Why: Tenants that do not share a ledger do not see each other's promises, and may be granted the same memory twice.
# Undo: rm /etc/tmpfiles.d/sparkguard.conf; groupdel sparkguard
act groupadd -f sparkguard
put 'd /dev/shm/sparkguard 2770 root sparkguard -' /etc/tmpfiles.d/sparkguard.conf
act systemd-tmpfiles --create sparkguard.conf
say 'add each tenant with: usermod -aG sparkguard NAME; each sets SPARKGUARD_DIR'

# ---- warning: driver-pools
# The driver keeps freed pages for itself; 19.0 GiB of the machine is in no counter of the kernel, and no device memory that is known of a program that runs.
# Why: CUDA programs are served from these pages first. To all others MemAvailable stays low by them, and programs that size themselves by it do not start. Dropping the kernel's caches empties the pool within a second; the next CUDA program that ends fills it again. The module option NVreg_EnableSystemMemoryPools=0 and a reboot end that for good; then the driver clears each allocation, which makes the load of a model slower.
# Undo: nothing to undo: the driver takes pages anew when a program asks for them
put 2 /proc/sys/vm/drop_caches

# ---- unknown: architecture
# /proc/sys/kernel/arch cannot be read.
# Why: sparkguard is built and tested for aarch64 and x86-64.
# For you to decide: uname -m

if [ -n "$failed" ]; then
    echo "not done: $failed" >&2
    exit 1
fi
echo 'done; sparkguard-doctor says what is left'
