/* System calls by the numbers of another architecture, past filters that know only one's. */
#include <stdio.h>
#include <unistd.h>

int main(void) {
    long made = 20;
    __asm__ volatile("int $0x80" : "+a"(made));
    printf("ESCAPED %ld\n", made);
    return 0;
}
