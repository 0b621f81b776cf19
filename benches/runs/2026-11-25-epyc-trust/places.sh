# usage: places.sh PLACE COMMAND...
C=$1; shift
case $C in
 root) exec "$@";;
 root-nogroups) exec unshare -m sh -c 'mount --make-rprivate /; for m in /sys/fs/cgroup/*; do mountpoint -q $m && mount -o remount,bind,ro $m; done; exec "$@"' sh "$@";;
 docker) exec unshare -m sh -c 'mount --make-rprivate /; for m in /sys/fs/cgroup/*; do mountpoint -q $m && mount -o remount,bind,ro $m; done; exec setpriv --bounding-set=-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+net_raw,+sys_chroot,+mknod,+audit_write,+setfcap --inh-caps=-all "$@"' sh "$@";;
 nobody) exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@";;
 nobody-nons) exec setpriv --reuid=65534 --regid=65534 --clear-groups python3 without-unshare.py "$@";;
esac
