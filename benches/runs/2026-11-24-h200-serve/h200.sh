cd "$(dirname "$0")"; xz -dkf offshoot.xz; chmod +x offshoot; export OFFSHOOT_CACHE=/tmp/cache; date
sed -i 's/^xz -dk offshoot.xz; chmod +x offshoot;//' pair.sh
timeout 330 bash pair.sh 2>&1 | tail -40; date
( time timeout 230 ./offshoot check --device cuda ) > $OUT/check.txt 2>&1; tail -12 $OUT/check.txt; date
