/* A program of another project, compiled with what pkg-config says. */
#include <ddp/ddp.h>
#include <stdio.h>

int main(void) {
  puts(ddp_version());
  return 0;
}
