# shellcheck shell=sh
# setup.sh - switches the guard on for all logins, services and containers of a machine, and takes it back. sparkguard-doctor
# --setup and --setup=undo print it behind the settings of this machine:
#
#   task      set_up or undo
#   doctor    sparkguard-doctor; it edits JSON
#   files     the folder of the files that the package brings; each is switched on by a link
#   brought   where they are now
#   library   libsparkguard.so
#   runtime   sparkguard-runtime, empty where it is not installed
#
# A file of others becomes another one in one step, after its engine has read the new one. Copies of such files as they were before
# and as this script left them are in $state, with a list of the folders and links that it made. Everything is in functions, which
# the last line calls: of a script that arrives in part nothing is done. Paths have no blank.
set -u
umask 022
: "${task:?}" "${doctor:?}" "${files:?}" "${brought:?}" "${library:?}" "${runtime?}"

root=${SPARKGUARD_SYSTEM_ROOT:-} # another root file system; commands of the running system are only named then
root=${root%/}
state=/var/lib/sparkguard-setup # members of the group can write below /var/lib/sparkguard, and root acts on this
kept=$root$state
list=$kept/list
wrappers=/usr/local/lib/sparkguard
history=/var/lib/sparkguard
daemon_json=/etc/docker/daemon.json
containerd_toml=/etc/containerd/config.toml
podman_conf=/etc/containers/containers.conf.d/60-sparkguard.conf
podman_others=/etc/containers/containers.conf.d/61-sparkguard-runtimes.conf
begin='# sparkguard-doctor --setup: begin'
end='# sparkguard-doctor --setup: end'
missed='' changed='' todo='' busy=''

say() { printf '%s\n' "$*"; }
miss() {
    missed=yes
    printf 'left: %s\n' "$*" >&2
}
act() {
    if [ -n "$root" ]; then
        say "not run below $root: $*"
    else
        "$@" || miss "$* (exit $?)"
    fi
}
later() { # COMMAND: for a person, where something was changed
    [ -z "$changed" ] || todo="$todo    $1
"
}
printable() { LC_ALL=C tr -c '[:print:]\n' '?'; }

# ---- files ----------------------------------------------------------------------------------------------------------

record() { grep -qxF -e "$1" "$list" || printf '%s\n' "$1" >>"$list"; }
has() { grep -qxF -e "$1" "$list" 2>/dev/null; }
forget() { { grep -vxF -e "$1" "$list" || true; } >"$list.new" && mv "$list.new" "$list"; }
folder() { # FOLDER: makes it and those above it
    [ ! -d "$root$1/" ] || return 0
    folder "${1%/*}" && record "folder $1" && mkdir "$root$1" && chmod 755 "$root$1"
}
open_list() {
    made='' at=$state
    while [ ! -d "$root$at" ]; do
        made="$at $made"
        at=${at%/*}
    done
    mkdir -p "$kept/before" "$kept/after" && touch "$list" || exit 1
    for at in $made; do record "folder $at" || exit 1; done
}
keep() { # before|after FILE [OTHER]: a copy of FILE, or of OTHER as FILE
    mkdir -p "$kept/$1${2%/*}" && cp -p "$root${3:-$2}" "$kept/$1$2"
}
is_odd() { [ -L "$root$1" ] || { [ -e "$root$1" ] && [ ! -f "$root$1" ]; }; }
is_as() { # before|after FILE
    if [ -e "$root$2" ]; then cmp -s "$root$2" "$kept/$1$2"; else [ ! -e "$kept/$1$2" ]; fi
}
spoiled() { # FILE
    rm -f "$root$1.sparkguard-new"
    miss "$1 could not be written"
    return 1
}
prepare() { # FILE MODE: one beside it, with the mode and owner of FILE if that is there
    changed=''
    if is_odd "$1"; then
        miss "$1 is no regular file"
        return 1
    fi
    { folder "${1%/*}" && rm -f "$root$1.sparkguard-new"; } || {
        spoiled "$1"
        return 1
    }
    if [ -e "$root$1" ]; then
        cp -p "$root$1" "$root$1.sparkguard-new" 2>/dev/null || spoiled "$1"
    else
        { : >"$root$1.sparkguard-new" && chmod "$2" "$root$1.sparkguard-new"; } 2>/dev/null || spoiled "$1"
    fi
}
finish() { # FILE: puts what is beside it in its place, after the copies are there
    if cmp -s "$root$1.sparkguard-new" "$root$1"; then
        rm -f "$root$1.sparkguard-new"
        return 0
    fi
    copy=$1.sparkguard-new
    if [ ! -e "$kept/after$1" ]; then
        [ ! -e "$root$1" ] || keep before "$1" || {
            spoiled "$1"
            return 1
        }
    elif ! is_as after "$1" && ! is_as before "$1"; then
        copy='' # edited in between: undo takes our part out of it
    fi
    { if [ -n "$copy" ]; then keep after "$1" "$copy"; else : >"$kept/after$1"; fi &&
        mv "$root$1.sparkguard-new" "$root$1" && say "wrote $1" && changed=yes; } || spoiled "$1"
}
put() { # FILE MODE: a file of ours alone; its content is the input
    content=$(cat)
    if [ -f "$root$1" ] && [ "$(cat "$root$1")" != "$content" ] && ! { [ -e "$kept/after$1" ] && is_as after "$1"; }; then
        miss "$1: is there already and not from here, or was edited"
        return 1
    fi
    prepare "$1" "$2" || return 1
    printf '%s\n' "$content" 2>/dev/null >"$root$1.sparkguard-new" || {
        spoiled "$1"
        return 1
    }
    finish "$1"
}
link() { # NAME PLACE: a file of the package's is switched on
    changed=''
    [ "$(readlink "$root$2")" != "$files/$1" ] || return 0
    if [ -e "$root$2" ] || [ -L "$root$2" ]; then
        miss "$2: is there already and not from here, or was edited"
        return 1
    fi
    { folder "${2%/*}" && record "link $2" && ln -s "$files/$1" "$root$2" && say "switched on $2" && changed=yes; } ||
        miss "$2 could not be made"
}
together() { # COMMAND... with its files in $together: what it changes in them can be taken back to the byte
    for each in $together; do
        [ -e "$kept/after$each" ] || [ ! -e "$root$each" ] || keep before "$each" || return 1
    done
    "$@" || return
    for each in $together; do [ ! -e "$root$each" ] || keep after "$each" || return 1; done
}
separate() { # puts the files in $together back as they were, if none has changed since; else returns 1
    for each in $together; do is_as after "$each" || return 1; done
    for each in $together; do
        if [ ! -e "$kept/before$each" ]; then
            rm -f "$root$each" || return 1
        elif ! is_as before "$each"; then
            { cp -p "$kept/before$each" "$root$each.sparkguard-new" && mv "$root$each.sparkguard-new" "$root$each"; } || return 1
        fi
    done
}
lose() { # FILE: its copies, when it is as it was
    rm -f "$kept/before$1" "$kept/after$1"
}

# ---- what is installed ----------------------------------------------------------------------------------------------

program() { # NAME: its path
    case $1 in
        /*) [ ! -x "$root$1" ] || echo "$1" ;;
        *) for each in /usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin; do
            [ ! -x "$root$each/$1" ] || { echo "$each/$1" && return; }
        done ;;
    esac
}
is_own() { # PROGRAM: sparkguard-runtime, a wrapper of ours, or a script that calls it: behind a wrapper it would call itself for ever
    for each in "$1" "$(readlink -f "$root$1")"; do
        case $each in "$wrappers"/* | "$root$wrappers"/* | */sparkguard-runtime) return 0 ;; esac
    done
    [ "$(head -c 2 "$root$1" | tr -d '\0')" = '#!' ] && grep -qF sparkguard-runtime "$root$1"
}
unit_text() { # UNIT: what its files say, without comments
    for each in lib usr/lib usr/local/lib etc; do
        for file in "$root/$each/systemd/system/$1" "$root/$each/systemd/system/$1.d"/*.conf; do
            case $file in */60-sparkguard.conf) continue ;; esac
            [ ! -f "$file" ] || grep -v '^[[:space:]]*[#;]' "$file"
        done
    done
}
group_number() {
    if [ -n "$root" ]; then
        sed -n 's/^sparkguard:[^:]*:\([0-9]*\):.*/\1/p' "$root/etc/group"
    else
        getent group sparkguard | cut -d: -f3
    fi
}

# ---- the group and its directories ----------------------------------------------------------------------------------

group_files='/etc/group /etc/gshadow /etc/group- /etc/gshadow- /etc/.pwd.lock'
make_group() {
    together=$group_files
    if [ -z "$(group_number)" ]; then
        { record group && { together systemd-sysusers ${root:+--root="$root"} - <"$root$files/sysusers.conf" ||
            together groupadd ${root:+-P "$root"} -g "$(sed -n 's/^g sparkguard \([0-9]*\) .*/\1/p' "$root$files/sysusers.conf")" sparkguard ||
            together groupadd ${root:+-P "$root"} -r sparkguard; } 2>/dev/null; } || miss 'the group sparkguard could not be made'
    fi
    user=${SUDO_USER:-root}
    if [ "$user" != root ] && [ -n "$(group_number)" ] && ! id -nG -- "$user" 2>/dev/null | tr ' ' '\n' | grep -qx sparkguard; then
        if has group && [ -z "$root" ]; then
            together usermod -aG sparkguard -- "$user" || miss "$user could not be put into the group sparkguard"
        else
            record "member $user" && act usermod -aG sparkguard -- "$user"
        fi
    fi
}
# What members write there takes no memory but its own, and no program starts from there. Another root has it from its next boot on.
# -n: else mount and umount leave /run/mount.
mount_shared() {
    unit=run-sparkguard-shared.mount
    if [ -d "$root/etc/systemd" ] || [ -d "$root/usr/lib/systemd" ]; then
        link "$unit" "/etc/systemd/system/$unit"
        link "$unit" "/etc/systemd/system/local-fs.target.wants/$unit"
    fi
    [ -z "$root" ] && ! mountpoint -q /run/sparkguard/shared || return 0
    mount -n -t tmpfs -o "$(sed -n 's/^Options=//p' "$files/$unit" | sed "s/gid=sparkguard/gid=$(group_number)/")" sparkguard /run/sparkguard/shared ||
        miss '/run/sparkguard/shared could not be given a file system of its own'
}
make_directories() {
    link tmpfiles.conf /etc/tmpfiles.d/sparkguard.conf
    [ -n "$(group_number)" ] || return 0
    for each in /run/sparkguard /run/sparkguard/shared "$history"; do
        [ -d "$root$each" ] || record "shared $each"
    done
    # One that the runtime has made for root alone is given to the group.
    for each in /run/sparkguard/shared "$history"; do
        [ -L "$root$each" ] || [ ! -d "$root$each" ] || [ "$(stat -c '%a %u %g' "$root$each")" = '700 0 0' ] || continue
        [ ! -d "$root$each" ] || record "shared $each"
        grep -e "^d /run/sparkguard " -e "^d $each " "$root$files/tmpfiles.conf" | while read -r _ path mode _ group _; do
            [ "$group" = root ] || group=$(group_number)
            { mkdir -p "$root$path" && chown "root:$group" "$root$path" && chmod "$mode" "$root$path"; } || exit 1
        done || miss "$each could not be made"
    done
    [ ! -d "$root/run/sparkguard/shared" ] || mount_shared
}

# ---- engines --------------------------------------------------------------------------------------------------------

wrapper_of() { echo "$wrappers/$1-runtime${2:+-$2}"; } # ENGINE [NAME]: of its default runtime, or of another one
wrapped() { sed -n 's/^exec \([^ ]*\) .*/\1/p' "$root$1" 2>/dev/null; }            # WRAPPER: the runtime behind it
written() { sed -n 's/^# The file of the engine has: //p' "$root$1" 2>/dev/null; } # WRAPPER: that runtime, as the engine's file had it
put_wrapper() { # ENGINE NEXT [NAME WRITTEN]: it starts containers also when the package is gone
    wrapper=$(wrapper_of "$1" "${3:-}")
    put "$wrapper" 755 <<END
#!/bin/sh
# Made by sparkguard-doctor --setup. The runtime${3:+ $3} of $1; without sparkguard-runtime, the one that it had.${4:+
# The file of the engine has: $4}
if [ -x $runtime ]; then
    export SPARKGUARD_NEXT_RUNTIME=$2
    exec $runtime "\$@"
fi
exec $2 "\$@"
END
    [ -x "$root$wrapper" ] && return
    miss "$1: $wrapper cannot be executed; what would name it is left as it is"
    return 1
}
# Whether a runtime runs containers on the kernel of this machine, where the library and its directory mean something: its program and
# the file that its links lead to both have a name that is known for that. krun is a link to crun, and starts virtual machines.
is_known() { # PROGRAM
    for each in "$1" "$(readlink -f "$root$1")"; do
        case ${each##*/} in runc | crun | youki | nvidia-container-runtime | nvidia-container-runtime.*) ;; *) return 1 ;; esac
    done
}
wrap() { # ENGINE NEXT: the default runtime
    if [ "${2#/}" = "$2" ]; then
        miss "$1: its default runtime is not installed"
    elif is_own "$2"; then
        miss "$1: its default runtime, $2, is sparkguard-runtime already; that stays"
    elif ! is_known "$2"; then
        miss "$1: its default runtime, $2, is not runc, crun, youki or nvidia-container-runtime; that stays"
    else
        put_wrapper "$1" "$2"
        return
    fi
    return 1
}
# Another runtime is wrapped under its own name, and noted in $others.
wrap_other() { # ENGINE NAME WRITTEN, a path, a name, or a wrapper of ours
    case $2,$3 in */*,* | *[!a-zA-Z0-9/,._+-]* | *,*,*) return 1 ;; esac
    other=$3 behind=''
    [ "$3" != "$(wrapper_of "$1" "$2")" ] || other=$(written "$3")
    [ -z "$other" ] || behind=$(program "$other")
    [ -n "$behind" ] || return 1
    ! is_own "$behind" || return 0
    is_known "$behind" || return 1
    put_wrapper "$1" "$behind" "$2" "$other" && others="$others,$2=$other"
}
list_others() { # ENGINE: the runtimes that are wrapped, as wrap_other notes them
    for each in "$root$(wrapper_of "$1")"-*; do
        [ ! -e "$each" ] || printf ',%s=%s' "${each#"$root$(wrapper_of "$1")-"}" "$(written "${each#"$root"}")"
    done
}

docker_pid() { # of a dockerd that runs
    pid=$(cat "$root/run/docker.pid" 2>/dev/null) && [ "$(cat "$root/proc/$pid/comm" 2>/dev/null)" = dockerd ] && echo "$pid"
}
reload_docker() { if pid=$(docker_pid); then act kill -HUP "$pid"; fi; } # it reads its file anew; containers that run stay
docker_has() { # NAME: whether it is dockerd's default runtime within 5 s
    for each in 1 2 3 4 5 6 7 8 9 10; do
        [ "$(docker info --format '{{.DefaultRuntime}}' 2>/dev/null)" != "$1" ] || return 0
        sleep 0.5
    done
    return 1
}
set_up_docker() {
    for flag in --default-runtime --add-runtime --config-file; do
        if { unit_text docker.service && cat "$root/etc/default/docker"; } 2>/dev/null | grep -v '^#' | grep -qF -e "$flag"; then
            miss "Docker, $daemon_json: dockerd is started with $flag, which must not be in both; take it to $daemon_json"
            return 1
        fi
    done
    if is_odd "$daemon_json"; then
        miss "Docker, $daemon_json: it is a symbolic link, or no regular file"
        return 1
    fi
    input=$root$daemon_json
    [ -e "$input" ] || input=$root$files/daemon.json
    next=$("$doctor" --daemon-json=next <"$input" 2>&1) || {
        miss "Docker, $daemon_json: $(printf '%s' "$next" | printable)"
        return 1
    }
    case $next in sparkguard) next=$(wrapped "$(wrapper_of docker)") ;; "$wrappers"/docker-runtime-*) next=$(wrapped "$next") ;; esac
    wrap docker "$(program "${next:-none}")" && wrap_others_of_docker && prepare "$daemon_json" 644 || return 1
    why=$("$doctor" "--daemon-json=add$others" <"$input" 2>&1 >"$root$daemon_json.sparkguard-new") || {
        rm -f "$root$daemon_json.sparkguard-new"
        miss "$daemon_json could not be written${why:+: $why}"
        return 1
    }
    if [ -z "$root" ] && dockerd --help 2>/dev/null | grep -qF -e --validate &&
        ! dockerd --validate --config-file "$daemon_json.sparkguard-new" >/dev/null 2>&1; then
        rm -f "$daemon_json.sparkguard-new"
        miss "Docker, $daemon_json: dockerd would not take it: dockerd --validate says why"
        return 1
    fi
    finish "$daemon_json" || return 1
    if [ -n "$changed" ] && docker_pid >/dev/null; then
        reload_docker
        [ -n "$root" ] || docker_has sparkguard || miss 'Docker: dockerd has not taken its file; systemctl restart docker'
    fi
}
wrap_others_of_docker() { # of $input
    others=''
    while read -r other name; do
        [ -z "$name" ] || wrap_other docker "$name" "$other" ||
            say "Docker: containers with --runtime=$name are not guarded; leave the option out"
    done <<END
$("$doctor" --daemon-json=others <"$input" 2>/dev/null | printable)
END
}
set_up_podman() {
    next=$(wrapped "$(wrapper_of podman)")
    [ -n "$next" ] || [ -n "$root" ] || next=$(podman info --format '{{.Host.OCIRuntime.Path}}' 2>/dev/null)
    if [ -z "$next" ]; then
        next=$(cat "$root/usr/share/containers/containers.conf" "$root/etc/containers/containers.conf" 2>/dev/null |
            sed -n 's/^[[:space:]]*runtime[[:space:]]*=[[:space:]]*"\([^"]*\)".*/\1/p' | tail -n 1)
        next=$(program "${next:-crun}")
        [ -n "$next" ] || next=$(program runc)
    fi
    wrap podman "$next" && wrap_others_of_podman || return 1
    case $next in
        */crun) link podman-crun.conf "$podman_conf" ;;
        *) link podman.conf "$podman_conf" ;;
    esac
    [ -n "$changed" ] && [ -z "$root" ] || return 0
    if [ "$(podman info --format '{{.Host.OCIRuntime.Name}}' 2>/dev/null)" != sparkguard ]; then
        rm -f "$podman_conf"
        miss "Podman: it does not take $podman_conf, which is gone again: podman info says what it has"
    fi
}
wrap_others_of_podman() {
    others='' lines=''
    for name in crun runc $(cat "$root"/usr/share/containers/containers.conf "$root"/etc/containers/containers.conf \
        "$root"/etc/containers/containers.conf.d/*.conf 2>/dev/null | awk '/^[ \t]*\[/ {inside = /\[engine\.runtimes\]/; next}
            inside && /^[ \t]*["a-zA-Z0-9_-]+[ \t]*=/ {sub(/=.*/, ""); gsub(/[ \t"]/, ""); print}'); do
        case " sparkguard $lines " in *" $name "*) continue ;; esac
        path=$(written "$(wrapper_of podman "$name")")
        [ -n "$path$root" ] || path=$(podman --runtime "$name" info --format '{{.Host.OCIRuntime.Path}}' 2>/dev/null)
        wrap_other podman "$name" "${path:-${root:+$name}}"
        case $others, in *,"$name"=*) lines="$lines $name" ;; esac
    done
    [ -z "$lines" ] || { echo '# Made by sparkguard-doctor --setup.' && echo '[engine.runtimes]' &&
        for name in $lines; do echo "$name = [\"$(wrapper_of podman "$name")\"]"; done; } | put "$podman_others" 644
}

dump() { "$root$(program containerd)" --config "$1" config dump 2>/dev/null; } # FILE: what containerd makes of it
toml() { # SECTION KEY: a value of a dump, which is the input
    awk -v section="$1" -v key="$2" '{sub(/^[ \t]+/, "")}
        /^\[/ {here = $0; gsub(/["\047\[\]]/, "", here); next}
        here == "plugins." section && index($0, key " = ") == 1 {sub(/^[^=]*= /, ""); gsub(/^["\047]|["\047]$/, ""); print; exit}'
}
only_more() { # FILE: whether its dump has every line of the dump before, and our runtime
    after=$(dump "$1") || return 1
    [ "$(printf '%s\n' "$after" | toml "$plugin.containerd.runtimes.sparkguard.options" BinaryName)" = "$wrappers/containerd-runtime" ] || return 1
    { printf '%s\n--\n' "$after" && printf '%s\n' "$before"; } | awk '/^imports = /{next} $0 == "--" {late = 1; next}
        !late {count[$0]++; next} --count[$0] < 0 {exit 1}'
}
without_block() { sed "/^$begin\$/,/^$end\$/d" "$root$1"; }
is_whole() { # FILE: our block in it, if there is one, has its first and its last line
    marks=$(grep -s -e 'sparkguard-doctor --setup: [be]' "$root$1")
    [ -z "$marks" ] || [ "$marks" = "$begin
$end" ] || {
        miss "$1: our block in it is damaged; take its lines out by hand"
        return 1
    }
}
set_up_containerd() {
    file=$containerd_toml
    if [ -n "$root" ] && grep -qs '^[[:space:]]*imports' "$root$file"; then
        miss "containerd, $file: what it imports can be seen on the running system alone"
        return 1
    fi
    is_whole "$file" && prepare "$file" 644 || return 1
    new=$root$file.sparkguard-new
    if [ -e "$root$file" ]; then without_block "$file" >"$new"; fi
    [ -z "$(tail -c 1 "$new")" ] || echo >>"$new"
    version=''
    if [ ! -s "$new" ]; then
        version='version = 2'
        echo "$version" >"$new"
    fi
    if ! before=$(dump "$new") || [ -z "$before" ]; then
        rm -f "$new"
        miss "containerd, $file: containerd config dump does not say what it has"
        return 1
    fi
    plugin=io.containerd.grpc.v1.cri
    case $before in *io.containerd.cri.v1.runtime*) plugin=io.containerd.cri.v1.runtime ;; esac
    written=$plugin # containerd 2 tells what it makes of a file of version 2
    if [ -n "$version" ]; then
        version=$(printf '%s\n' "$before" | grep '^version = ' || echo "$version")
    elif grep -q '^version *= *2' "$new"; then
        written=io.containerd.grpc.v1.cri
    fi
    if printf '%s\n' "$before" | grep -q '^disabled_plugins = .*cri["\047]'; then
        rm -f "$new"
        say 'containerd serves no Kubernetes here: its CRI plugin is disabled.'
        return 0
    fi
    default=$(printf '%s\n' "$before" | toml "$plugin.containerd" default_runtime_name)
    options=$plugin.containerd.runtimes.${default:-runc}
    next=$(printf '%s\n' "$before" | toml "$options.options" BinaryName)
    cgroup=$(printf '%s\n' "$before" | toml "$options.options" SystemdCgroup)
    if [ "$(printf '%s\n' "$before" | toml "$plugin.containerd.runtimes.sparkguard.options" BinaryName)" ]; then
        rm -f "$new"
        say 'containerd has a runtime of this name, not from here.'
        return 0
    fi
    [ "$(printf '%s\n' "$before" | toml "$options" runtime_type)" = io.containerd.runc.v2 ] || next=/none
    wrap containerd "$(program "${next:-runc}")" || { rm -f "$new" && return 1; }
    wrap_others_of_containerd
    { [ -n "$version" ] || cat "$new"; } >"$new.block"
    { echo "$begin" && printf '%s' "${version:+$version
}" && sed "s/@PLUGIN@/$written/" "$root$files/containerd.toml" &&
        { [ "$cgroup" != true ] || echo '    SystemdCgroup = true'; } && echo "$end"; } >>"$new.block" && mv_content "$new.block" "$new"
    if ! only_more "$new"; then
        # A table of runtimes in the file takes the place of those that containerd has by itself: they are named with ours.
        { sed '$d' "$new" && printf '%s\n' "$before" | awk -v start="plugins.$plugin.containerd.runtimes." '
            /^ *\[/ {line = $0; gsub(/[] \047"[]/, "", line); inside = index(line, start) == 1} inside && NF' | sed "s/$plugin/$written/" &&
            echo "$end"; } >"$new.block" &&
            mv_content "$new.block" "$new"
        if ! only_more "$new"; then
            rm -f "$new"
            miss "containerd, $file: containerd would not take a runtime of ours beside what it has; add it by hand: $files/containerd.toml"
            return 1
        fi
    fi
    finish "$file" && later 'systemctl restart containerd'
    say "containerd: a runtime that pods name by a RuntimeClass: $files/runtimeclass.yaml"
}
name_programs() { # PLUGIN FROM TO [NAME]: BinaryName of a runtime, or of any, in a file or dump, which is the input
    awk -v start="plugins.$1.containerd.runtimes." -v from="$2" -v to="$3" -v name="${4:-}" '
        /^[ \t]*\[/ {here = $0; gsub(/[] \t\047"[]/, "", here); inside = index(here, start name) == 1 && here ~ /\.options$/}
        inside && /^[ \t]*BinaryName[ \t]*=/ && (at = index($0, "\"" from "\"") + index($0, "\047" from "\047")) {
            $0 = substr($0, 1, at) to substr($0, at + 1 + length(from))
        }
        {print}'
}
wrap_others_of_containerd() { # in $new and $before; what containerd has by default is left to a RuntimeClass of ours
    for name in $(printf '%s\n' "$before" | sed -n "s/^ *\\[plugins.*$plugin.*\\.containerd\\.runtimes\\.\\([^].]*\\)\\]\$/\\1/p"); do
        options=$plugin.containerd.runtimes.$name
        other=$(printf '%s\n' "$before" | toml "$options.options" BinaryName)
        wrapper=$(wrapper_of containerd "$name") others=''
        case $name,$other in sparkguard,* | *, | "${default:-runc}",*) continue ;; esac
        name_programs "$written" "$other" "$wrapper" "$name." <"$new" >"$new.other"
        if [ "$(printf '%s\n' "$before" | toml "$options" runtime_type)" = io.containerd.runc.v2 ] &&
            { [ "$other" = "$wrapper" ] || ! cmp -s "$new" "$new.other"; } && wrap_other containerd "$name" "$other"; then
            [ -z "$others" ] || before=$(cat "$new.other" >"$new" && printf '%s\n' "$before" | name_programs "$plugin" "$other" "$wrapper" "$name.")
        else
            say "containerd: pods of the runtime $name are not guarded"
        fi
        rm -f "$new.other"
    done
}
mv_content() { cat "$1" >"$2" && rm -f "$1"; } # FROM TO: mode and owner of TO stay

set_up_engines() {
    first=''
    for engine in docker podman containerd; do
        case $engine in docker) each=dockerd ;; *) each=$engine ;; esac
        [ -n "$(program "$each")" ] || continue
        if [ -z "$runtime" ]; then
            miss "$engine: sparkguard-runtime is not installed"
            continue
        fi
        "set_up_$engine"
        [ -n "$first" ] || first=$(wrapped "$(wrapper_of "$engine")")
    done
    [ -z "$first" ] || put /etc/sparkguard/runtime.conf 644 <<END
# Made by sparkguard-doctor --setup.
next = $first
library = $library
shared = /run/sparkguard/shared
END
}

# ---- logins and services --------------------------------------------------------------------------------------------

change_pam() { # OPTION NAME
    DEBIAN_FRONTEND=noninteractive DEBCONF_SYSTEMRC=$root$files/debconf.conf pam-auth-update ${root:+--root "$root"} "$@"
}
set_up_logins() {
    together=$(cd "$root/" && for each in etc/pam.d/common-* var/lib/pam/*; do [ ! -f "$each" ] || printf '/%s ' "$each"; done)
    for each in /etc/security/pam_env.conf /etc/environment; do
        if grep -qs -e '^[[:space:]]*\(export \)\{0,1\}LD_PRELOAD' "$root$each"; then
            miss "logins: $each sets LD_PRELOAD; put $library first there"
            together=''
        fi
    done
    if [ -n "$together" ] && [ -d "$root/usr/share/pam-configs" ]; then
        config=/usr/share/pam-configs/sparkguard
        [ -e "$root$config" ] || put "$config" 644 <"$root$files/pam-config"
        record pam && together change_pam --enable sparkguard
        grep -qsF "$files/pam_env.conf" "$root/etc/pam.d/common-session" ||
            miss 'logins: pam-auth-update has not put the guard into /etc/pam.d/common-session'
    elif [ -d "$root/etc/pam.d" ] && [ -n "$together" ]; then
        miss "logins: there is no pam-auth-update; add to PAM's sessions: optional pam_env.so conffile=$files/pam_env.conf"
    fi
    link profile.sh /etc/profile.d/sparkguard.sh
    [ -d "$root/etc/systemd" ] || [ -d "$root/usr/lib/systemd" ] || return 0
    link environment.conf /etc/environment.d/60-sparkguard.conf
    link user-generator.sh /etc/systemd/user-environment-generators/60-sparkguard
}
set_up_service() { # UNIT
    place=/etc/systemd/system/$1.d/60-sparkguard.conf
    if unit_text "$1" | grep -qF LD_PRELOAD; then
        miss "$1 sets LD_PRELOAD already; put $library first there"
    elif ! unit_text "$1" | grep -e '^User=.' -e '^DynamicUser=[yt1]' | grep -qvx -e User=root -e User=0; then
        link service-of-root.conf "$place"
    elif [ -n "$(group_number)" ]; then # systemd starts no service with a group that does not exist
        link service.conf "$place"
    else
        miss "$1: there is no group sparkguard"
    fi
    case $1 in
        *@.service) later "systemctl restart ${1%.service}*.service" ;;
        *) later "systemctl restart $1" ;;
    esac
}
set_up_services() {
    units=$(for each in "$root"/lib/systemd/system "$root"/usr/lib/systemd/system "$root"/usr/local/lib/systemd/system "$root"/etc/systemd/system; do
        printf '%s\n' "$each"/ollama*.service "$each"/jupyter*.service
    done | sed -n 's,.*/\([a-zA-Z0-9@_.-]*\)$,\1,p' | sort -u)
    for unit in $units; do
        changed=''
        set_up_service "$unit"
    done
}

set_up() {
    open_list
    if [ ! -d "$root$files" ]; then
        folder "${files%/*}" && record brought && mkdir "$root$files" && say "wrote $files"
        for each in "$brought"/*; do
            sed "s,@[L]IBDIR@,${library%/*},g;s,@[S]YSTEMDIR@,$files,g" "$each" >"$root$files/${each##*/}"
        done
        chmod 755 "$root$files/user-generator.sh"
    fi
    if ! grep -qsF "$library" "$root$files/environment.conf"; then
        miss "$files names another library than $library: make install and make install-system with the same PREFIX"
        exit 1
    fi
    make_group
    make_directories
    set_up_engines
    set_up_logins
    set_up_services
    if [ -d "$root/run/systemd/system" ]; then act systemctl daemon-reload; fi
    if [ -n "$todo" ]; then
        say 'for you to do, when it suits: these end what runs in the service'
        printf %s "$todo"
    fi
    [ -z "$missed" ] || exit 1
    say 'done; new logins, services and containers are guarded. To take it back: sparkguard-doctor --setup=undo | sudo sh'
}

# ---- and back -------------------------------------------------------------------------------------------------------

is_idle() { # ENGINE: whether no container runs that was started by one of its wrappers; else its part must stay
    wrapper=$(wrapper_of "$1") name=''
    # dockerd starts a runtime with arguments by a script of its own.
    for each in "$root"/run/containerd/io.containerd.runtime.v2.task/*/*/options.json \
        "$root"/run/docker/containerd/daemon/io.containerd.runtime.v2.task/*/*/options.json; do
        script=$(grep -aos '/[^"]*/runtimes/[^"]*' "$each" | head -n 1)
        ! grep -qsF -e "$wrapper" "$each" ${script:+"$root$script"} || name=shim
    done
    for each in "$root"/proc/[0-9]*; do
        [ "$(cat "$each/comm" 2>/dev/null)" != conmon ] || ! grep -qsaF -e "$wrapper" "$each/cmdline" || name=conmon
    done
    [ -n "$name" ] || return 0
    busy="$busy $1"
    miss "$1: containers run by $wrapper; end them, then do --setup=undo again"
    return 1
}
restore() { # FILE [COMMAND...]: as it was before, byte for byte; of one that was edited since, COMMAND prints what is left without our part
    file=$1
    shift
    [ -e "$kept/after$file" ] || return 0
    if is_odd "$file"; then
        miss "$file is no regular file any more"
        return 1
    elif is_as before "$file" || [ ! -e "$root$file" ]; then
        lose "$file"
        return 0
    elif is_as after "$file"; then
        if [ ! -e "$kept/before$file" ]; then
            rm "$root$file" && say "removed $file" && lose "$file"
            return
        fi
        { cp -p "$kept/before$file" "$root$file.sparkguard-new" && mv "$root$file.sparkguard-new" "$root$file" &&
            say "restored $file" && lose "$file"; } || spoiled "$file"
        return
    elif [ $# -eq 0 ]; then
        miss "$file was edited since; remove it, or keep it and remove $state/after$file"
        return 1
    fi
    new=$root$file.sparkguard-new
    if ! { cp -p "$root$file" "$new" && "$@" >"$new"; }; then
        rm -f "$new"
        return 1
    fi
    case $(tr -d ' \n' <"$new") in
        '' | '{}') [ -e "$kept/before$file" ] || rm "$root$file" "$new" ;;
    esac
    { [ ! -e "$new" ] || mv "$new" "$root$file"; } &&
        say "took our part out of $file" && lose "$file"
}
take_json() {
    earlier=$root$files/daemon.json
    [ ! -e "$kept/before$daemon_json" ] || earlier=$kept/before$daemon_json
    "$doctor" "--daemon-json=take$(list_others docker)" <"$root$daemon_json" 3<"$earlier" 2>/dev/null || {
        miss "$daemon_json was edited and is no JSON: take \"sparkguard\" out of it"
        return 1
    }
}
take_block() {
    is_whole "$containerd_toml" && text=$(without_block "$containerd_toml" && echo .) || return
    for plugin in io.containerd.grpc.v1.cri io.containerd.cri.v1.runtime; do
        for each in $(list_others containerd | tr ',' ' '); do
            text=$(printf '%s' "$text" | name_programs "$plugin" "$(wrapper_of containerd "${each%%=*}")" "${each#*=}")
        done
    done
    printf '%s' "${text%.}"
}
undefault() { # dockerd keeps a default that its file stops to name: a file that names one is there for a moment
    docker_pid >/dev/null && [ -z "$root" ] && ! is_as before "$daemon_json" || return 0
    named=$daemon_json.sparkguard-now
    { cp -p "$daemon_json" "$named" && take_json | "$doctor" --daemon-json=name >"$daemon_json.sparkguard-new" &&
        mv "$daemon_json.sparkguard-new" "$daemon_json"; } || miss 'dockerd must be restarted before a container can be started'
    reload_docker
    docker_has runc || true
    mv "$named" "$daemon_json"
}
undo_docker() { undefault && restore "$daemon_json" take_json; }
undo_podman() { restore "$podman_others"; unlink_one "$podman_conf"; }
undo_containerd() { restore "$containerd_toml" take_block; }
undo_engines() {
    for engine in containerd podman docker; do
        case $engine in docker) theirs=$daemon_json ;; podman) theirs=$podman_conf ;; *) theirs=$containerd_toml ;; esac
        [ -e "$kept/after$wrappers/$engine-runtime" ] || continue
        is_idle "$engine" || continue
        "undo_$engine"
        for each in "$kept/after$(wrapper_of "$engine")"-* "$kept/after$(wrapper_of "$engine")"; do
            each=${each#"$kept/after"}
            if grep -qsF -e "\"$each\"" -e "'$each'" "$root$theirs" "$root$podman_others"; then
                miss "$each: $theirs still names it"
            else
                restore "$each"
            fi
        done
    done
    case $busy in *docker* | *podman* | *containerd*) ;; *) restore /etc/sparkguard/runtime.conf ;; esac
}
unlink_one() { # PLACE
    has "link $1" || return 0
    case $(readlink "$root$1") in
        "$files"/*) rm "$root$1" && say "switched off $1" ;;
        *)
            if [ -e "$root$1" ] || [ -L "$root$1" ]; then
                miss "$1 was edited since; remove it, or keep it and remove its line from $state/list"
                return 1
            fi
            ;;
    esac
    forget "link $1"
}
unlink_all() {
    grep '^link ' "$list" >"$list.links" || true
    while read -r _ place; do
        case $place in "$podman_conf") ;; *) unlink_one "$place" ;; esac
    done <"$list.links"
    rm -f "$list.links"
}
undo_logins() {
    has pam || return 0
    together=$(cd "$kept/after" && find etc/pam.d var/lib/pam -type f | sed 's,^,/,')
    separate || change_pam --remove sparkguard || miss 'pam-auth-update --remove sparkguard has failed'
    for each in $together; do lose "$each"; done
    forget pam
    restore /usr/share/pam-configs/sparkguard
}
unmount() {
    while mountpoint -q "$1" && umount -n -l "$1"; do :; done # of what stays mounted it is told that it cannot be removed
}
unmount_own() { # the runtime keeps what the last containers left for the report; one that runs has its directory mounted inside as well
    for each in "$root"/run/sparkguard/promises/* "$root"/run/sparkguard/containers/*/; do
        unmount "$each"
    done
}
undo_shared() {
    if has 'shared /run/sparkguard' && [ -z "$missed" ]; then unmount_own; fi
    if has 'shared /run/sparkguard/shared' && [ -z "$missed" ]; then unmount "$root/run/sparkguard/shared"; fi
    for each in /run/sparkguard/shared /run/sparkguard; do
        if ! has "shared $each" || [ -n "$missed" ]; then continue; fi
        { rm -rf "$root${each:?}" && forget "shared $each" && say "removed $each"; } || miss "$each could not be removed"
    done
    has "shared $history" && [ -z "$missed" ] || return 0
    if [ ! -d "$root$history" ] || rmdir "$root$history" 2>/dev/null; then
        say "removed $history"
    else
        say "kept $history, which is not empty"
    fi
    forget "shared $history"
}
undo_group() {
    sed -n 's/^member //p' "$list" >"$list.members"
    while read -r user; do act gpasswd -d -- "$user" sparkguard && forget "member $user"; done <"$list.members"
    rm -f "$list.members"
    has group && [ -z "$missed" ] || return 0
    together=$group_files
    if [ -d "$root$history" ]; then
        say "kept the group sparkguard, which owns $history" # another group could be given its number, and with that the records
    elif each=$(grep -ls -e '^[[:space:]]*\(Supplementary\)\{0,1\}Groups\{0,1\}=.*sparkguard' "$root"/etc/systemd/system/*.d/*.conf); then
        say "kept the group sparkguard, which ${each#"$root"} names"
    elif [ -z "$(group_number)" ] || separate || groupdel ${root:+-P "$root"} sparkguard; then
        say 'removed the group sparkguard'
    else
        miss 'the group sparkguard could not be removed'
        return 0
    fi
    for each in $group_files; do lose "$each"; done
    forget group
}
undo_folders() { # last made, first removed
    [ -z "$missed" ] || return 0
    rm -rf "$kept/before" "$kept/after"
    ! has brought || rm -rf "$root${files:?}"
    folders=$(sed -n 's/^folder //p' "$list" | sort -r)
    rm -f "$list"
    for each in $folders; do
        [ ! -d "$root$each" ] || rmdir "$root$each" 2>/dev/null || say "kept $each, which is not empty"
    done
}
warn_of_containers() { # engines keep the name of the runtime with each container
    bound=$(grep -ls '"Runtime":"sparkguard"' "$root"/var/lib/docker/containers/*/hostconfig.json | wc -l)
    if [ "$bound" -gt 0 ]; then say "make anew, for they no longer start: $bound containers of Docker"; fi
    for each in "$root"/var/lib "$root"/root/.local/share "$root"/home/*/.local/share; do
        each=$each/containers/storage
        if cat "$each/db.sql" "$each/libpod/bolt_state.db" 2>/dev/null | grep -qaF '"runtime":"sparkguard"'; then
            say "make anew, for they no longer start: containers of Podman in $each (podman ps --all)"
        fi
    done
}
undo() {
    if [ ! -e "$list" ]; then
        say 'nothing is set up here'
        exit 0
    fi
    warn_of_containers
    undo_engines
    undo_logins
    unlink_all
    undo_shared
    undo_group
    undo_folders
    if [ -d "$root/run/systemd/system" ]; then act systemctl daemon-reload; fi
    [ -z "$missed" ] || exit 1
    say 'done; sessions, services and containers that run keep the guard until they end'
}

if [ -z "$root" ] && [ "$(id -u)" -ne 0 ]; then
    echo 'run this as root: sudo sh FILE' >&2
    exit 1
fi
case $task in
    set_up) set_up ;;
    undo) undo ;;
esac
