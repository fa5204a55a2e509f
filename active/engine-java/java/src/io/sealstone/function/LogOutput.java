package io.sealstone.function;

import java.io.OutputStream;

/** Standard output or error of a function: lines of the log. */
final class LogOutput extends OutputStream {
    private static final int LINE_BYTES_MAX = 4096;

    private final CallHost host;
    private final int level;
    private byte[] line = new byte[128];
    private int length;

    LogOutput(CallHost host, int level) {
        this.host = host;
        this.level = level;
    }

    @Override
    public synchronized void write(int value) {
        if (value == '\n') {
            writeLine();
            return;
        }
        if (length == line.length) {
            if (length >= LINE_BYTES_MAX) {
                writeLine();
            } else {
                byte[] longer = new byte[length * 2];
                System.arraycopy(line, 0, longer, 0, length);
                line = longer;
            }
        }
        line[length++] = (byte) value;
    }

    private void writeLine() {
        byte[] text = new byte[length];
        System.arraycopy(line, 0, text, 0, length);
        length = 0;
        host.log(level, text);
    }

    /** Writes a line without a line feed to the log of the call that printed it. */
    synchronized void writeRest() {
        if (length > 0) {
            writeLine();
        }
    }
}
