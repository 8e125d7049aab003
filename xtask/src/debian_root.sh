# Makes an image of the tree of a Debian suite: TREE MODULES IMAGE VERSIONS SIZE
set -eu
PATH=$PATH:/usr/sbin:/sbin
tree=$1 modules=$2 image=$3 versions=$4 size=$5
mkdir -p "$tree/usr/lib/modules"
cp -r "$modules" "$tree/usr/lib/modules/"
chroot "$tree" depmod "$(basename "$modules")"
# Otherwise each boot is a first one, which enables units and rebuilds what is derived from installed files.
echo 706c696d736f6c6c706c696d736f6c6c >"$tree/etc/machine-id"
touch "$tree/etc/.updated" "$tree/var/.updated"
echo machine >"$tree/etc/hostname"
: >"$tree/etc/resolv.conf"
chroot "$tree" useradd --uid 1000 --create-home --shell /bin/sh user
chroot "$tree" dpkg-query --show >"$versions"
# What is written to a machine's disk is dropped, so it needs no journal, and its tables are zeroed here.
mke2fs -q -t ext4 -O ^has_journal -E lazy_itable_init=0 -L root -d "$tree" "$image" "$size"
rm -rf "$tree"
