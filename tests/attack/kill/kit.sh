#!/bin/bash
# What the kill harness needs on a larger machine without a network (x86_64, glibc as here or newer, Python 3.12, root):
#   tests/attack/kill/kit.sh FOLDER    after `python -m tests.lab setup` here; pieces of at most 30 MB
#   FOLDER/start.sh CHECKOUT KIND …    there; rows and logs in /root/kill, see `python -m tests.attack.kill --report`
set -euo pipefail
out=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")/../../.."
python3 -m pip download -q --python-version 3.12 --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 \
    --only-binary=:all: -d "$out/wheels" "ansible-core>=2.21,<2.22" Jinja2 packaging paramiko pydantic PyYAML rich typer pip
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/root/libs"
for program in podman conmon runc fuse-overlayfs nsenter ip xz ssh ssh-keygen ssh-agent ssh-add xtables-nft-multi; do
    path=$(PATH=$PATH:/usr/sbin:/sbin command -v "$program")
    mkdir -p "$work/root$(dirname "$path")"
    cp -L "$path" "$work/root$path"
    # of a static program ldd says so, and ends with 1
    { ldd "$path" || [ $? -eq 1 ]; } | awk '/=> \//{print $3}' |
        sed -E '/\/(libc|libm|libdl|libpthread|librt|libresolv)\.so/d' | xargs -r cp -Lt "$work/root/libs"
done
for name in iptables iptables-save iptables-restore ip6tables ip6tables-save; do ln -s xtables-nft-multi "$work/root/usr/sbin/$name"; done
mkdir -p "$work/root"/{usr/lib/x86_64-linux-gnu,usr/share,etc/cni}
cp -r /usr/lib/cni "$work/root/usr/lib/"
cp -r /usr/lib/x86_64-linux-gnu/xtables "$work/root/usr/lib/x86_64-linux-gnu/"
cp -rL /etc/containers "$work/root/etc/"
cp -r /usr/share/containers "$work/root/usr/share/"
[ ! -d /etc/cni/net.d ] || cp -r /etc/cni/net.d "$work/root/etc/cni/"
tar -C "$work/root" -cJf "$work/root.tar.xz" .
# the lab's base, without what no host reads
container=$(podman create "$(podman images -q localhost/gpu-lab-base | head -1)" true)
mkdir "$work/base"
podman export "$container" | tar -C "$work/base" -xf -
podman rm "$container" >/dev/null
rm -rf "$work/base"/usr/share/{doc,man,info,locale} "$work/base"/var/lib/apt/lists/*
tar -C "$work/base" -cf - . | xz -4 -T0 >"$work/base.tar.xz"
.venv/bin/python -c 'from tests.lab.containers import debian; print(debian.fetch())' >"$work/debs"
tar -C "$(cat "$work/debs")" -cf "$work/debs.tar" .
(cd "$work" && for piece in root.tar.xz base.tar.xz debs.tar; do split -b 30M "$piece" "$out/$piece."; done)
cat >"$out/start.sh" <<'START'
#!/bin/bash
set -euo pipefail
kit=$(cd "$(dirname "$0")" && pwd)
checkout=$1
shift
[ -x /opt/kill/bin/python ] || {
    python3 -m venv --without-pip /opt/kill
    PYTHONPATH=$(echo "$kit"/wheels/pip-*.whl) /opt/kill/bin/python -m pip install -q --no-index --find-links "$kit/wheels" \
        ansible-core jinja2 packaging paramiko pydantic pyyaml rich typer pip
    mkdir -p /root/kill/root ~/.cache/gpu-lab/daemons/host
    cat "$kit"/root.tar.xz.* >/root/kill/root.tar.xz
    # tar needs the program xz, which is in the archive
    python3 -c 'import tarfile; tarfile.open("/root/kill/root.tar.xz").extractall("/root/kill/root", filter="tar")'
    cat "$kit"/base.tar.xz.* >/root/kill/base.tar.xz
    cat "$kit"/debs.tar.* | tar -C ~/.cache/gpu-lab/daemons/host -xf -
    (cd /root/kill/root && find usr etc \( -type f -o -type l \) | while read -r file; do
        [ -e "/$file" ] || { mkdir -p "/$(dirname "$file")" && cp -a "$file" "/$file"; }
    done)
    mkdir -p /usr/local/lib /usr/local/bin
    for library in /root/kill/root/libs/*; do
        ldconfig -p | grep -q "$(basename "$library")" || cp "$library" /usr/local/lib/
    done
    ldconfig
    # Hosts ask this machine's name server. Where that does not answer, apt-get update took a minute (the likely cause; not traced).
    echo nameserver 127.0.0.1 >/etc/resolv.conf
    # not used where LAB_ROOTFS is set, but asked for
    command -v debootstrap >/dev/null || ln -s /bin/false /usr/local/bin/debootstrap
}
for program in podman runc fuse-overlayfs iptables ssh ssh-keygen gpg openssl xz; do
    command -v "$program" >/dev/null || { echo "missing: $program" >&2; exit 1; }
done
export PATH=/opt/kill/bin:$PATH LAB_ROOTFS=/root/kill/base.tar.xz PYTHONPATH=$checkout
cd "$checkout"
python -m tests.lab setup
for kind in "$@"; do
    setsid nohup python -m tests.attack.kill --kind "$kind" --points "${POINTS:-100}" --jobs "${JOBS:-8}" \
        --json "/root/kill/$kind.json" --evidence "/root/kill/evidence-$kind" >"/root/kill/$kind.log" 2>&1 </dev/null &
done
sleep 30
tail -qn 1 /root/kill/*.log
pgrep -f tests.attack.kill >/dev/null || { echo "the harness has ended" >&2; exit 1; }
START
chmod 755 "$out/start.sh"
du -sh "$out"
