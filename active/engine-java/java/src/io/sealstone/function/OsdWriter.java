package io.sealstone.function;

import java.io.IOException;
import java.io.OutputStream;
import java.util.Objects;

/** A stream that writes behind. {@link #close} reports errors. */
public final class OsdWriter extends OutputStream {
    private final CallHost host;
    private final long stream;
    private byte[] pending;
    private int length;
    private boolean isClosed;

    OsdWriter(CallHost host, long stream) {
        this.host = host;
        this.stream = stream;
    }

    private void open() throws IOException {
        if (isClosed) {
            throw new IOException("the stream is closed");
        }
        if (pending == null) {
            pending = new byte[Osd.BUFFER_BYTES];
        }
    }

    private void send() throws IOException {
        int count = length;
        length = 0;
        OsdException.checked(host.writeNext(stream, pending, 0, count));
    }

    @Override
    public void write(int value) throws IOException {
        open();
        pending[length++] = (byte) value;
        if (length == pending.length) {
            send();
        }
    }

    @Override
    public void write(byte[] from, int start, int count) throws IOException {
        Objects.checkFromIndexSize(start, count, from.length);
        open();
        while (count > 0) {
            int part = Math.min(count, pending.length - length);
            if (part == pending.length) {
                OsdException.checked(host.writeNext(stream, from, start, part));
            } else {
                System.arraycopy(from, start, pending, length, part);
                length += part;
                if (length == pending.length) {
                    send();
                }
            }
            start += part;
            count -= part;
        }
    }

    /** Writes the rest and waits for all writes. */
    @Override
    public void close() throws IOException {
        if (isClosed) {
            return;
        }
        isClosed = true;
        try {
            if (length > 0) {
                send();
            }
        } finally {
            pending = null;
            OsdException.checked(host.closeStream(stream, true));
        }
    }
}
