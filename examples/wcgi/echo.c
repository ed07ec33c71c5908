/* A CGI program for WASI: shows what it was told. Build it with examples/wcgi/build. */
#include <stdio.h>
#include <stdlib.h>

extern char **environ;

int main(void) {
    const char *method = getenv("REQUEST_METHOD");
    printf("Content-Type: text/plain; charset=utf-8\r\n\r\n");
    printf("method: %s\n", method ? method : "none");
    for (char **variable = environ; *variable; variable++) {
        printf("%s\n", *variable);
    }
    /* The request's body ends the answer. */
    char piece[4096];
    size_t length;
    while ((length = fread(piece, 1, sizeof piece, stdin)) > 0) {
        fwrite(piece, 1, length, stdout);
    }
    return 0;
}
