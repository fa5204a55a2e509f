/* Exports no entry point. */
int answer(void) {
    return 42;
}
