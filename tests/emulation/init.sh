#!/bin/busybox sh
# The first process of an emulated machine: loads the kernel's TLS, runs the tests named in the file
# `tests` beside the modules, says how they ended, and turns the machine off.
# Its environment is the kernel's command line: EMULATION_DIR holds `modules`, `load` and `tests`.
b=/bin/busybox
[ -x "$b" ] || b=/usr/bin/busybox
export PATH=/usr/bin:/bin:/usr/sbin:/sbin HOME=/tmp RUST_BACKTRACE=1 LANG=C
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys 2>/dev/null
$b mount -t tmpfs tmpfs /tmp
$b mount -t devtmpfs devtmpfs /dev 2>/dev/null
$b ip link set lo up 2>/dev/null || $b ifconfig lo 127.0.0.1 up
echo "emulation: $($b uname -sr)"
while read -r module; do
    # Some are built in, or need hardware the machine does not have.
    $b insmod "$EMULATION_DIR/modules/$module" 2>/dev/null || echo "emulation: without $module"
done <"$EMULATION_DIR/load"
status=0
# The tests cannot lie below /tmp, which is this machine's own.
[ -r "$EMULATION_DIR/tests" ] || status=1
while read -r line; do
    $b sh -c "$line" </dev/null || status=1
done <"$EMULATION_DIR/tests"
$b cat /proc/net/tls_stat
echo "emulation: status $status"
$b sync
$b poweroff -f
