#!/bin/sh
# Made by sparkguard-doctor @VERSION@. Read it, take out what you do not want, run it as root.
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

# step bounds
# Undo: chmod 600 /etc/sparkguard.conf
act chmod 644 /etc/sparkguard.conf

# step directory
# Undo: rm /etc/tmpfiles.d/sparkguard.conf; groupdel sparkguard
act groupadd -f sparkguard
put 'd /dev/shm/sparkguard 2770 root sparkguard -' /etc/tmpfiles.d/sparkguard.conf
act systemd-tmpfiles --create sparkguard.conf
say 'add each tenant with: usermod -aG sparkguard NAME; each sets SPARKGUARD_DIR'

# step driver-pools
# Undo: nothing to undo: the driver takes pages anew when a program asks for them
put 2 /proc/sys/vm/drop_caches

# step fragmentation
# Undo: nothing to undo
act sync
put @ /proc/sys/vm/drop_caches
put 1 /proc/sys/vm/compact_memory

# step huge-pages
# Undo: sysctl vm.nr_hugepages=N; they come back at boot where sysctl.conf or the kernel's command line asks for them
for pool in "$root"/sys/kernel/mm/hugepages/*/nr_hugepages; do
    put 0 "${pool#"$root"}"
done

# step kexec-handover
# Undo: rm /etc/default/grub.d/sparkguard-kho.cfg; update-grub; both take a reboot
put "GRUB_CMDLINE_LINUX_DEFAULT=\"\$GRUB_CMDLINE_LINUX_DEFAULT kho=off\"" /etc/default/grub.d/sparkguard-kho.cfg
act update-grub

# step page-cache
# Undo: nothing to undo: files are read from the disk again
act sync
put @ /proc/sys/vm/drop_caches

# step ssh
# Undo: rm /etc/systemd/system/@.d/sparkguard.conf /etc/systemd/system/system.slice.d/sparkguard.conf; systemctl daemon-reload
put '[Service]
OOMScoreAdjust=-1000
MemoryMin=512M' /etc/systemd/system/@.d/sparkguard.conf
put '[Slice]
MemoryMin=512M' /etc/systemd/system/system.slice.d/sparkguard.conf
act systemctl daemon-reload
act systemctl try-restart @

# step swap
# Undo: swapon -a
act swapoff -a

# step swap-at-boot
# Undo: mv /etc/fstab.sparkguard /etc/fstab
keep /etc/fstab
sed -i -E 's/^[[:space:]]*[^#[:space:]][^[:space:]]*[[:space:]]+[^[:space:]]+[[:space:]]+swap([[:space:]]|$)/#&/' \
    "$root/etc/fstab"

# step swappiness
# Undo: rm /etc/sysctl.d/90-sparkguard.conf; sysctl vm.swappiness=60, or what it was
put 1 /proc/sys/vm/swappiness
put 'vm.swappiness = 1' /etc/sysctl.d/90-sparkguard.conf

# step systemd-oomd
# Undo: systemctl enable --now systemd-oomd.service
act systemctl disable --now systemd-oomd.service

if [ -n "$failed" ]; then
    echo "not done: $failed" >&2
    exit 1
fi
echo 'done; sparkguard-doctor says what is left'
